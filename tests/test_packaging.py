"""The house rules that hold for the package as a whole: imports, layers, names, sizes."""

import ast
import graphlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import everygrad

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "everygrad"
NAMES_FILE = ROOT / "tests/public_names.txt"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LONGEST_FILE = 600  # lines; generated .pyi files do not count
IMPORT_BUDGET = 0.1  # seconds of CPU on top of NumPy's import
LOADED_WHEN_USED = {
    *("torch", "llvmlite", "wgpu", "cupy", "scipy", "sklearn", "matplotlib", "tqdm"),
    *("safetensors", "mpi4py"),
}
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
MAY_EXEC = {"backends": "kernels are generated source"}

# DESIGN: a part may import only its own row and the rows above it.
LAYERS = [
    {"errors", "dtypes", "shapes", "config", "scopes", "torchnames"},
    {"compile"},
    {"backends"},
    {"tensor"},
    {"autograd"},
    {"dispatch"},
    {"ops"},
    {"transforms"},  # the upper half of autograd/: written in ops
    {"tracing"},
    {"fft", "linalg", "special"},  # names of ops
    {"nn", "optim", "data", "io", "distributed", "tools", "__main__"},
]
RANK = {part: rank for rank, row in enumerate(LAYERS) for part in row}
# Modules that stand in another row than their folder; they keep to that row's rule themselves.
STANDS_WITH = {
    # what a Tensor is made of: they know no Tensor class
    **{
        f"everygrad.autograd.{m}": "tensor"
        for m in ("decorating", "graph", "modes", "saving", "transforms", "watching")
    },
    **{
        f"everygrad.autograd.{m}": "transforms"
        for m in ("anomaly", "batching", "checkpoint", "forward", "function", "functional")
    },
    "everygrad.autograd.gradcheck": "transforms",
}
MAY_LOAD_LATE = {
    "everygrad": "eg.nn, eg.optim and the like load on first use",
    "everygrad.autograd": "eg.autograd.grad; its modules import this package first",
    "everygrad.autograd.api": "the thread pool loads with the first parallel pass",
    "everygrad.backends.base": "a device's modules load when the device is first used",
    "everygrad.backends.cpu.native": "llvmlite, which render imports, loads with the first kernel",
    "everygrad.ops": "ops that few programs use load when they are first asked for",
    "everygrad.ops.spec": "the same, through the registry and as methods",
    "everygrad.tracing.verify": "the reference loads when a function is first verified",
    "everygrad.tools.stubs": "goes through all modules of ops",
}


class Import(NamedTuple):
    """`module` (one of ours) imported at `line`; `late` when inside a function."""

    module: str
    line: int
    late: bool


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in SOURCES}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def part_of(module: str) -> str:
    """The entry of LAYERS a module belongs to; the package itself comes after all of them."""
    return STANDS_WITH.get(module, module.split(".")[1] if "." in module else "everygrad")


def imports_of(module: str) -> list[Import]:
    return list(_imports(tree_of(module), module, late=False))


def _imports(node: ast.AST, module: str, late: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue  # a name for the type checker is not knowledge at run time
        for target in _targets(child, module):
            if target.split(".")[0] == "everygrad":
                yield Import(target, child.lineno, late)
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _imports(child, module, late or function)


def _targets(node: ast.AST, module: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            depth = node.level - (MODULES[module].name == "__init__.py")
            base = ".".join([*module.split(".")[: -depth or None], *filter(None, [node.module])])
        full = [f"{base}.{alias.name}" for alias in node.names]
        return [name if name in MODULES else base for name in full]  # a module, or a name in one
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        name = node.args[0] if node.args else None
        if isinstance(name, ast.Constant):
            return [str(name.value)]
        return ["everygrad"]  # by a computed name: ours as far as anyone can tell
    return []


def run_python(code: str, **more: str) -> str:
    # OpenBLAS starts its threads on import; one is enough, and steadier to time
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", **more}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_import_is_quick(tmp_path: Path) -> None:
    # CPU time, not wall time: the other test processes must not fail this one
    code = (
        "import time, numpy; start = time.process_time(); import everygrad; "
        "print(time.process_time() - start)"
    )
    # compiled files are what an installed package has; an environment may forbid writing them here
    cached = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    run_python(code, **cached)
    seconds = statistics.median(float(run_python(code, **cached)) for _ in range(7))
    assert seconds <= IMPORT_BUDGET, "see: python -X importtime -c 'import everygrad'"


def test_import_loads_nothing_heavy() -> None:
    loaded = run_python("import sys, everygrad; print(*sys.modules)").split()
    assert not LOADED_WHEN_USED & {name.split(".")[0] for name in loaded}


def test_public_names() -> None:
    names = "".join(f"{name}\n" for name in sorted(everygrad.__all__))
    if os.environ.get("EVERYGRAD_UPDATE") == "1":
        NAMES_FILE.write_text(names, encoding="utf-8")
    committed = NAMES_FILE.read_text(encoding="utf-8") if NAMES_FILE.exists() else ""
    cure = "if meant: EVERYGRAD_UPDATE=1 make test ARGS='-k public_names', and commit the file"
    assert names.split() == committed.split(), cure


def test_every_public_name_exists() -> None:
    # in a fresh process: here other tests may have imported what __init__ forgot
    code = "import everygrad as eg; print(*[n for n in eg.__all__ if not hasattr(eg, n)])"
    assert run_python(code).split() == []
    assert len(set(everygrad.__all__)) == len(everygrad.__all__)


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_no_long_files() -> None:
    files = [*SOURCES, *(ROOT / "tests").rglob("*.py")]
    lengths = {str(f.relative_to(ROOT)): len(f.read_bytes().splitlines()) for f in files}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


@pytest.mark.parametrize("module", MODULES)
def test_no_pickle_and_no_eval(module: str) -> None:
    found = []
    for node in ast.walk(tree_of(module)):
        match node:
            case ast.Import(names=names):
                found += [a.name for a in names if a.name.split(".")[0] in PICKLES]
            case ast.ImportFrom(module=str(name)) if name.split(".")[0] in PICKLES:
                found.append(name)
            case ast.Call(func=ast.Name(id="eval")):
                found.append(f"eval, line {node.lineno}")
            case ast.Call(func=ast.Name(id="exec")) if part_of(module) not in MAY_EXEC:
                found.append(f"exec, line {node.lineno}")
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                found.append(f"allow_pickle, line {node.lineno}")
    assert not found, f"{module}: " + ", ".join(found)


def test_nothing_beside_the_package_pickles() -> None:
    """Our own processes send each other JSON."""
    files = [
        f for d in ("devtools", "tests", "benchmarks", "tools") for f in ROOT.glob(f"{d}/**/*.py")
    ]
    found = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            found += [f"{file.name}: {n}" for n in names if n.split(".")[0] in PICKLES]
    assert len(files) > 200
    assert not found, ", ".join(found)


# the package itself gathers all the others
@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) != "everygrad"])
def test_imports_point_upwards_in_the_list(module: str) -> None:
    part = part_of(module)
    assert part in RANK, f"{part} is no part of DESIGN's list: give it a row in LAYERS"
    wrong = [
        f"line {i.line}: {i.module}"
        for i in imports_of(module)
        if not i.late and RANK.get(part_of(i.module), len(LAYERS)) > RANK[part]
    ]
    assert not wrong, f"{module} may not import: " + ", ".join(wrong)


@pytest.mark.parametrize("module", MODULES)
def test_no_late_imports_of_our_own(module: str) -> None:
    late = [f"line {i.line}: {i.module}" for i in imports_of(module) if i.late]
    assert not late or module in MAY_LOAD_LATE, f"{module}: " + ", ".join(late)


def test_no_import_cycles() -> None:
    # a package's __init__ gathers its modules, which is no cycle: edges are between files named
    graph = {m: {i.module for i in imports_of(m) if not i.late} - {m} for m in MODULES}
    order = [*graphlib.TopologicalSorter(graph).static_order()]  # CycleError names the modules
    assert {*order} >= {*MODULES}
