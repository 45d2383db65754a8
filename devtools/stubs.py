"""Writes the typed stubs of what the op registry adds at run time.

`python -m devtools.stubs` writes `tensor.pyi` (class Tensor with every method and operator)
and `__init__.pyi` (the package's names) beside the modules they describe; `--check` only says
whether they are fresh. Signatures and docstrings come from the functions themselves.
"""

from __future__ import annotations

import builtins
import inspect
import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.dtypes import DType
from everygrad.ops.record.keywords import aliases_of
from everygrad.ops.record.spec import REGISTRY, Op, alias_methods

PACKAGE = Path(__file__).parents[1] / "everygrad"
WIDTH = 100
HEADER = "# Made by `python -m devtools.stubs`: change the ops, not this file.\n"
LIKE = "_TensorLike"  # what ops take where they take numbers and NumPy arrays too
LIKE_MEANING = "Tensor | complex | np.ndarray[Any, Any] | np.generic"

_STEMS = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
)
OPERATORS = {f"__{kind}{stem}__" for kind in ("", "r", "i") for stem in _STEMS}
COMPARISONS = {f"__{stem}__" for stem in ("eq", "ne", "lt", "le", "gt", "ge")}

# What a signature says less exactly than Python's data model, or than its docstring.
RETURNS = {
    **{"__bool__": "bool", "__int__": "int", "__float__": "float", "__complex__": "complex"},
    **dict.fromkeys(("numpy", "__array__"), "np.ndarray[Any, Any]"),
    **dict.fromkeys(("T", "mT", "where"), "Tensor"),
}
PROPERTY_DOCS = {"T": "The two axes of a matrix exchanged.", "mT": "The last two axes exchanged."}


class Imports:
    """Renders types as text, and remembers what the text needs imported."""

    def __init__(self, shadowed: Iterable[str] = (), local: Iterable[str] = ()) -> None:
        self.shadowed = frozenset(shadowed)  # builtins whose names the stub gives to others
        self.local = frozenset(local)  # defined in the stub itself
        self.needed: dict[str, set[str]] = {}
        self.modules: set[str] = set()

    def add(self, module: str, name: str) -> None:
        self.needed.setdefault(module, set()).add(name)

    def text(self, hint: Any) -> str:
        """A type as it is written in source."""
        if hint is None or hint is types.NoneType:
            return "None"
        if hint is Ellipsis:
            return "..."
        if hint is Any:
            self.add("typing", "Any")
            return "Any"
        if isinstance(hint, list):  # the parameters of a Callable
            return f"[{', '.join(map(self.text, hint))}]"
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            return " | ".join(map(self.text, args))
        if origin is not None:
            return f"{self.text(origin)}[{', '.join(map(self.text, args))}]"
        if not isinstance(hint, type):
            raise TypeError(f"stubs: cannot write {hint!r} as a type")
        return self.named(hint)

    def named(self, kind: type) -> str:
        name, module = kind.__name__, kind.__module__
        if module == "builtins":
            if name in self.shadowed:
                self.modules.add("import builtins")
                return f"builtins.{name}"
        elif module.split(".")[0] == "numpy":
            self.modules.add("import numpy as np")
            return f"np.{name}"
        elif name not in self.local:
            self.add(module, name)
        return name

    def lines(self) -> str:
        """The import statements: standard library, NumPy, our own."""
        groups: list[list[str]] = [[], [], []]
        for module in sorted(self.modules):
            groups[1 if "numpy" in module else 0].append(module)
        for module, names in sorted(self.needed.items()):
            ours = module.split(".")[0] == "everygrad"
            groups[2 if ours else 0].append(_from_line(module, names))
        return "\n\n".join("\n".join(group) for group in groups if group)


def _from_line(module: str, names: set[str]) -> str:
    """One import, classes first, wrapped as the formatter would."""
    shown = sorted(
        (n for n in names if f"{n} as {n}" not in names),
        key=lambda n: (not n.lstrip("_")[:1].isupper(), n),
    )
    line = f"from {module} import {', '.join(shown)}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {n}," for n in shown), ")"])


# --- functions -----------------------------------------------------------------------------------


def _hints(fn: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """The signature, and the type of each parameter and of the result."""
    signature = inspect.signature(fn)
    if hasattr(fn, "__signature__"):  # an elementwise op: the same for all parameters
        hints: dict[str, Any] = dict.fromkeys(signature.parameters, LIKE)
        return signature, {**hints, "return": Tensor}
    return signature, typing.get_type_hints(fn)


def _parameters(
    fn: Callable[..., Any], imports: Imports, *, method: bool, like: Iterable[str] = ()
) -> Iterator[str]:
    """Each parameter as text; those named in `like` take numbers and arrays too."""
    signature, hints = _hints(fn)
    kinds = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = _other_names(fn, [p.name for p in kinds])
    renamed = False
    for n, p in enumerate(kinds):
        if method and n == 0:
            yield "self"
            continue
        if p.kind is p.KEYWORD_ONLY and not any(
            q.kind in (q.VAR_POSITIONAL, q.KEYWORD_ONLY) for q in kinds[:n]
        ):
            yield "*"
        hint = hints.get(p.name, Any)
        text = LIKE if hint is LIKE or p.name in like else imports.text(hint)
        if text == LIKE and p.default is None:
            text = f"{LIKE} | None"
        star = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(p.kind.name, "")
        default = "" if p.default is p.empty else f" = {_default(p.default)}"
        renamed = renamed or (p.default is p.empty and p.name in named.values())
        if renamed and not default and not star:
            default = " = ..."  # it, or one before it, may be given under its other name
        yield f"{star}{p.name}: {text}{default}"
        last = n + 1 == len(kinds) or kinds[n + 1].kind is not p.POSITIONAL_ONLY
        if p.kind is p.POSITIONAL_ONLY and last:
            yield "/"
    if named and not any(p.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY) for p in kinds):
        yield "*"
    for alias, name in named.items():
        yield f"{alias}: {imports.text(hints.get(name, Any))} = ..."


# other names that type checkers are told of: the ones that programs use as keywords
_SHOWN = (
    *("dim", "dims", "keepdim", "dim1", "dim2", "start_dim", "end_dim", "diagonal", "size"),
    *("shifts", "src", "tensors", "split_size_or_sections", "unbiased", "end", "steps"),
)


def _other_names(fn: Callable[..., Any], names: list[str]) -> dict[str, str]:
    """The names that other libraries have for parameters of an op, and the parameters."""
    module = inspect.unwrap(fn).__module__
    if not module.startswith("everygrad.ops.") or ".aliases." in module:
        return {}
    found = aliases_of(names)
    if "destination" in names:
        del found["src"]
    return {alias: found[alias] for alias in _SHOWN if alias in found}


def _default(value: Any) -> str:
    plain = value is None or isinstance(value, bool | int | float)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value) if plain else "..."


def _result(name: str, fn: Callable[..., Any], imports: Imports) -> str:
    if name in RETURNS:
        if "np." in RETURNS[name]:
            imports.modules.add("import numpy as np")
        shadowed = RETURNS[name] in imports.shadowed
        return f"builtins.{RETURNS[name]}" if shadowed else RETURNS[name]
    return imports.text(_hints(fn)[1].get("return", Any))


def define(name: str, parameters: list[str], result: str, doc: str | None, indent: str) -> str:
    """A function without its body, wrapped as the formatter would."""
    body = f"\n{_docstring(doc, indent + '    ')}" if doc else " ..."
    head = f"{indent}def {name}({', '.join(parameters)}) -> {result}:"
    if len(head) + (0 if doc else len(body)) <= WIDTH:
        return head + body
    row = f"{indent}    {', '.join(parameters)}"
    if len(row) > WIDTH:
        row = "\n".join(f"{indent}    {p}," for p in parameters)
    return f"{indent}def {name}(\n{row}\n{indent}) -> {result}:{body}"


def _docstring(doc: str, indent: str) -> str:
    """The first paragraph of a docstring, as one."""
    text = " ".join(inspect.cleandoc(doc).split("\n\n")[0].split())
    quote = 'r"""' if "\\" in text else '"""'
    if len(indent) + len(quote) + len(text) + 3 <= WIDTH:
        return f'{indent}{quote}{text}"""'
    lines = textwrap.wrap(quote + text, WIDTH - len(indent) - 3)  # two lines at least
    return "\n".join(f"{indent}{line}" for line in [*lines, '"""'])


# --- tensor.pyi ----------------------------------------------------------------------------------


def tensor_stub() -> str:
    """The text of `everygrad/core/tensor.pyi`."""
    module = sys.modules[Tensor.__module__]  # `everygrad.core.tensor` is the function by now
    own = {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    }
    for name in alias_methods():
        getattr(Tensor, name)  # puts the function itself in the place of its alias
    imports = Imports(shadowed=set(vars(Tensor)) & set(vars(builtins)), local=own)
    imports.modules.add("import numpy as np")
    imports.add("typing", "TypeAlias")
    parts = [
        _class(value, imports) if isinstance(value, type) else _function(name, value, imports)
        for name, value in own.items()
    ]
    alias = f"{LIKE}: TypeAlias = {LIKE_MEANING}"
    return f"{HEADER}\n{imports.lines()}\n\n{alias}\n\n" + "\n\n".join(parts) + "\n"


def _function(name: str, fn: Callable[..., Any], imports: Imports, like: Iterable[str] = ()) -> str:
    parameters = list(_parameters(fn, imports, method=False, like=like))
    return define(name, parameters, _result(name, fn, imports), fn.__doc__, "")


def _class(kind: type, imports: Imports) -> str:
    bases = [imports.text(b) for b in kind.__bases__ if b is not object]
    lines = [f"class {kind.__name__}({', '.join(bases)}):" if bases else f"class {kind.__name__}:"]
    if kind.__doc__:
        lines.append(_docstring(kind.__doc__, "    ") + "\n")
    hints = typing.get_type_hints(kind)
    lines += [f"    {name}: {imports.text(hint)}" for name, hint in hints.items()]
    if kind is Tensor:
        lines.append("    _grad: Tensor | None")
    lines += [_member(name, value, imports) for name, value in _members(kind)]
    return "\n".join(lines)


def _members(kind: type) -> list[tuple[str, Any]]:
    """Its own members in the order of the source, then operators, then methods by name."""
    found = [
        (name, value)
        for name, value in vars(kind).items()
        # __getattr__ only raises: shown to type checkers it would let any name pass
        if isinstance(value, property | types.FunctionType) and name != "__getattr__"
    ]

    def rank(entry: tuple[str, Any]) -> tuple[int, str]:
        name, value = entry
        getter = value.fget if isinstance(value, property) else value
        if getter.__module__ == kind.__module__:
            return 0, ""
        return (1, "") if name.startswith("__") else (2, name)

    return sorted(found, key=rank)


def _member(name: str, value: Any, imports: Imports) -> str:
    if isinstance(value, property):
        return _property(name, value, imports)
    signature = inspect.signature(value)
    like = list(signature.parameters)[1:] if name in OPERATORS | COMPARISONS else []
    parameters = list(_parameters(value, imports, method=True, like=like))
    result = "Tensor" if like else _result(name, value, imports)
    if like:
        parameters = ["self", f"other: {LIKE}", "/"]
    # help() of an operator says nothing that the operator does not
    doc = None if name.startswith("__") else value.__doc__
    text = define(name, parameters, result, doc, "    ")
    if any(p.name != p.name.lower() for p in signature.parameters.values()):
        text = text.replace(":\n", ":  # noqa: N803  # the name of a matrix\n", 1)
    # object says bool; a tensor compares element by element
    return f"{text}  # type: ignore[override]" if name in ("__eq__", "__ne__") else text


def _property(name: str, value: property, imports: Imports) -> str:
    doc = PROPERTY_DOCS.get(name) or value.__doc__
    result = _result(name, value.fget, imports)  # type: ignore[arg-type]  # all can be read
    text = f"    @property\n{define(name, ['self'], result, doc, '    ')}"
    if not name.islower():
        text = text.replace(":\n", ":  # noqa: N802  # the Array API's name\n", 1)
    if value.fset is not None:
        setter = define(name, ["self", f"value: {result}"], "None", None, "    ")
        text += f"\n    @{name}.setter\n{setter}"
    return text


# --- __init__.pyi ---------------------------------------------------------------------------------


def package_stub() -> str:
    """The text of `everygrad/__init__.pyi`."""
    # complete by now: whoever runs this module has imported the package around it
    package: Any = sys.modules["everygrad"]
    names: list[str] = sorted({*package.__all__, *package._ALIASES, "compile"})
    public = set(names)
    imports = Imports(shadowed=public & set(vars(builtins)))
    imports.add("everygrad.core.tensor", LIKE)
    functions: dict[str, Op] = {op.name: op for op in REGISTRY.values() if not op.namespace}
    values, definitions = [], []
    aliases: list[tuple[str, str]] = []
    for name in names:
        if name in functions:
            op = functions[name]
            like = op.inputs if name in ("gelu", "softplus", "where") else ()
            definitions.append(_function(name, op.function, imports, like))
        elif name in package._SAME:
            aliases.append((name, package._SAME[name]))
        elif name in package._ALIASES:
            imports.add(package._ALIASES[name], f"{name} as {name}")
        elif name == "compile":
            imports.add("everygrad._jit.jit", "compile as compile")
        elif name in package._LATER:
            imports.add(package._LATER[name], f"{name} as {name}")
        elif name in package._PARTS or isinstance(vars(package)[name], types.ModuleType):
            imports.add("everygrad", f"{name} as {name}")
        else:
            value = vars(package)[name]
            if isinstance(value, type | types.FunctionType):
                imports.add(value.__module__, f"{name} as {name}")
            else:
                values.append(f"{name}: {imports.text(type(value))}")
    if any(isinstance(vars(package).get(name), DType) for name in names):
        imports.add(DType.__module__, DType.__name__)
    definitions += [_alias(name, taught, imports, values) for name, taught in aliases]
    parts = [HEADER + "\n" + imports.lines(), "\n".join(values), *filter(None, definitions)]
    return "\n\n".join(parts) + "\n"


def _alias(name: str, taught: str, imports: Imports, values: list[str]) -> str:
    """Another library's name for what is taught under ours."""
    package: Any = sys.modules["everygrad"]
    value = getattr(package, name)
    if isinstance(value, DType):
        values.append(f"{name}: {imports.text(type(value))}")
        return ""
    return f"{name} = {taught}"


# --- ops/record/lazy_index.py --------------------------------------------------------------------


def _loaded_at_once() -> set[str]:
    """The modules of ops that `import everygrad` loads, asked of a fresh process."""
    program = "import sys, everygrad; print(*sys.modules)"
    given = [sys.executable, "-c", program]
    found = subprocess.run(given, capture_output=True, text=True, check=True).stdout.split()
    return {name for name in found if name.startswith("everygrad.ops.")}


def _module_of(op: Op) -> str:
    """The module an op's record stands in."""
    body: Any = getattr(op, "body", None)
    code: Any = body if hasattr(body, "__globals__") else inspect.unwrap(op.function)
    return str(code.__globals__["__name__"])


def later_table() -> str:
    """The text of `everygrad/ops/record/lazy_index.py`."""
    at_once = _loaded_at_once()
    tables: dict[str, dict[str, set[str]]] = {"OPS": {}, "FUNCTIONS": {}, "METHODS": {}}
    for op in REGISTRY.values():
        module = _module_of(op)
        if module in at_once:
            continue
        name = module.removeprefix("everygrad.ops.")
        given = {"OPS": [op.name], "FUNCTIONS": [] if op.namespace else [op.name]}
        for table, names in {**given, "METHODS": op.methods}.items():
            if names:
                tables[table].setdefault(name, set()).update(names)
    meaning = '"""What each module of ops has that is loaded later: see the package."""'
    parts = [HEADER.rstrip(), meaning, ""]
    for table, rows in tables.items():
        parts.append(f"{table}: dict[str, tuple[str, ...]] = {{")
        for module in sorted(rows):
            text = ", ".join(f'"{n}"' for n in sorted(rows[module]))
            lines = textwrap.wrap(text, WIDTH - 9)  # and a comma
            parts += [f'    "{module}": (', *(f"        {line}" for line in lines)]
            parts[-1] += ","
            parts.append("    ),")
        parts.append("}  # fmt: skip")
    return "\n".join(parts) + "\n"


# --- command -------------------------------------------------------------------------------------


def stubs() -> dict[Path, str]:
    """What each stub should say."""
    root = PACKAGE
    load_all_modules()
    return {
        root / "core" / "tensor.pyi": tensor_stub(),
        root / "__init__.pyi": package_stub(),
        root / "ops" / "record" / "lazy_index.py": later_table(),
    }


def load_all_modules() -> None:
    """Every module of ops, also one that the table does not know yet."""
    for path in sorted((PACKAGE / "ops").rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        import_module(".".join(["everygrad", *parts]).removesuffix(".__init__"))


def main(arguments: list[str]) -> int:
    """Write the stubs, or with --check compare them; 1 if one is stale, 2 for a wrong call."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m devtools.stubs [--check]", file=sys.stderr)
        return 2
    stale = [
        (path, text)
        for path, text in stubs().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if arguments:
            print(f"{path} is stale: run python -m devtools.stubs", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 1 if arguments and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
