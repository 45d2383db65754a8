"""The house rules that hold for the package as a whole: imports, layers, names, sizes."""

import ast
import graphlib
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import everygrad

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "everygrad"
NAMES_FILE = ROOT / "tests/public_names.txt"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LONGEST_FILE = 600  # lines; generated .pyi files do not count
IMPORT_BUDGET = 0.1  # seconds of CPU on top of NumPy's import
LOADED_WHEN_USED = {
    *("torch", "llvmlite", "wgpu", "cupy", "scipy", "sklearn", "matplotlib", "tqdm"),
    *("safetensors", "mpi4py", "onnx"),
    *("pathlib", "tempfile", "shutil", "random", "urllib"),  # Python's own: 8 ms
}
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
MAY_EXEC = {"backends": "kernels are generated source"}

ARCHITECTURE = ROOT / "docs/architecture.md"


def table_under(heading: str) -> dict[str, int]:
    """The parts that a table of the architecture page names, each with its row; a part may import
    only its own row and the rows above it."""
    text = ARCHITECTURE.read_text(encoding="utf-8").split(heading, 1)[1]
    body = text.split("|---|---|\n", 1)[1].split("\n\n", 1)[0]
    rows = [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in body.splitlines()]
    assert all(rows)
    return {part.rstrip("/"): rank for rank, row in enumerate(rows) for part in row}


PARTS = table_under("# The map of the house")
BACKEND_PARTS = table_under("### Inside a backend")
DEVICES = ("cpu", "cuda", "webgpu")
IN_A_BACKEND = re.compile(rf"everygrad\.backends\.({'|'.join(DEVICES)})\.")
MAY_LOAD_LATE = {
    "everygrad": "eg.nn, eg.optim and the like load on first use",
    "everygrad.__main__": "the command that needs the onnx package",
    "everygrad.optim": "GradScaler knows optimisers, and loads after them",
    "everygrad.amp": "eg.amp.GradScaler: optimisers load when they are first asked for",
    "everygrad.cuda": "eg.cuda.amp knows loss scaling, which lies above",
    "everygrad.autograd": "eg.autograd.grad; its modules import this package first",
    "everygrad.autograd.api": "the thread pool loads with the first parallel pass",
    "everygrad.io": "eg.io.load_onnx and save_onnx lie above, in interop",
    "everygrad.interop.torch.calls": "PyTorch is optional, and imported at the first call",
    "everygrad.backends": "torch.backends.cuda and the like, when they are asked for",
    "everygrad.utils": "each part loads when it is asked for",
    "everygrad.backends.base": "a device's modules load when the device is first used",
    "everygrad.backends.cpu.lazy_native": "llvmlite loads with the first kernel",
    "everygrad.data.sampler": "ranks, for programs that have several",
    "everygrad.nn.module": "files load when weights are first asked of one",
    "everygrad.ops": "ops that few programs use load when they are first asked for",
    "everygrad.ops.record.keywords": "what PyTorch means otherwise loads with the first such call",
    "everygrad.ops.record.spec": "the same, through the registry and as methods",
    "everygrad._jit.verify": "the reference loads when a function is first verified",
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


def rank_of(module: str, parts: dict[str, int]) -> int | None:
    """The row of the longest entry that begins a module's path."""
    steps = module.split(".")[1:]
    for n in range(len(steps), 0, -1):
        rank = parts.get("/".join(steps[:n]))
        if rank is not None:
            return rank
    return None


def backend_rank_of(module: str) -> int | None:
    """The row inside its backend: by the folder or file, with the device's name or for all."""
    steps = module.split(".")[2:]
    if len(steps) < 2 or steps[0] not in DEVICES:
        return None
    own = BACKEND_PARTS.get("/".join(steps[:2]))
    return BACKEND_PARTS.get(steps[1]) if own is None else own


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
    others = "import sys, numpy, ml_dtypes; others = {*sys.modules}; "
    loaded = run_python(others + "import everygrad; print(*{*sys.modules} - others)").split()
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
            case ast.Call(func=ast.Name(id="exec")) if module.split(".")[1] not in MAY_EXEC:
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


# the package itself, and a folder's __init__, gather all the others
PLACED = [m for m in MODULES if m != "everygrad"]


@pytest.mark.parametrize("module", PLACED)
def test_imports_point_upwards_in_the_table(module: str) -> None:
    own = rank_of(module, PARTS)
    if MODULES[module].name == "__init__.py" and own is None:
        own = len(PARTS)
    assert own is not None, f"{module} has no row in {ARCHITECTURE.name}"
    wrong = [
        f"line {i.line}: {i.module}"
        for i in imports_of(module)
        if not i.late and i.module != "everygrad" and (rank_of(i.module, PARTS) or 0) > own
    ]
    assert not wrong, f"{module} may not import: " + ", ".join(wrong)


@pytest.mark.parametrize("module", [m for m in MODULES if IN_A_BACKEND.match(m)])
def test_imports_inside_a_backend_point_upwards(module: str) -> None:
    own = backend_rank_of(module)
    assert own is not None, f"{module} has no row in {ARCHITECTURE.name}, inside a backend"
    wrong = [
        f"line {i.line}: {i.module}"
        for i in imports_of(module)
        if not i.late
        and i.module.split(".")[:3] == module.split(".")[:3]
        and (backend_rank_of(i.module) or 0) > own
    ]
    assert not wrong, f"{module} may not import: " + ", ".join(wrong)


def test_every_folder_says_what_lives_there() -> None:
    folders = {path.parent for path in SOURCES}
    for folder in folders:
        init = folder / "__init__.py"
        assert init.exists(), folder
        assert ast.get_docstring(ast.parse(init.read_text())), folder
        assert len([*folder.glob("*.py")]) <= 20, folder


@pytest.mark.parametrize("module", MODULES)
def test_no_late_imports_of_our_own(module: str) -> None:
    late = [f"line {i.line}: {i.module}" for i in imports_of(module) if i.late]
    assert not late or module in MAY_LOAD_LATE, f"{module}: " + ", ".join(late)


def test_no_import_cycles() -> None:
    # a package's __init__ gathers its modules, which is no cycle: edges are between files named
    graph = {m: {i.module for i in imports_of(m) if not i.late} - {m} for m in MODULES}
    order = [*graphlib.TopologicalSorter(graph).static_order()]  # CycleError names the modules
    assert {*order} >= {*MODULES}


FIRST = [
    *(
        "amp.scaler",
        "amp",
        "optim",
        "optim.lr_scheduler",
        "nn",
        "nn.utils",
        "data",
        "io",
        "models",
        "training",
    ),
    *("distributions", "tools", "autograd.transforms.vmap", "ops.nn", "cuda", "fft", "linalg"),
]


@pytest.mark.parametrize("name", FIRST)
def test_any_part_may_be_imported_first(name: str) -> None:
    command = [sys.executable, "-c", f"import everygrad.{name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
