"""Writes docs/reference/*.md: every public function with what it does and an example that was run.

`python -m devtools.reference` writes the pages, `--check` only says whether they are fresh. What a
function does is its docstring; its example is the docstring's own, or a line of `examples/*.txt`
(`name: expression`, several statements with `;;` between them), which nothing but this loads.
"""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg
from everygrad.core import torch_names

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
EXAMPLES = Path(__file__).parent / "examples"
# page -> its title, and what is in front of its names; examples of a page are in a file of its name
PAGES = {
    "elementwise": ("Elementwise functions", "eg."),
    "reduce": ("Reductions and scans", "eg."),
    "shape": ("Shapes", "eg."),
    "index": ("Indices, order and search", "eg."),
    "nn": ("Functions behind layers", "eg."),
    "other": ("Creation, random numbers, products, gradients", "eg."),
    "linalg": ("Linear algebra", "eg.linalg."),
    "fft": ("Fourier transforms", "eg.fft."),
    "special": ("Special functions", "eg.special."),
    "layers": ("Layers and losses", "eg.nn."),
    "functional": ("Functions of layers besides", "eg.nn.functional."),
    "init": ("Initialisers", "eg.nn.init."),
    "tensor": ("What a tensor has besides", "x."),
    "aliases": ("What PyTorch has besides", "eg."),
}
_HELPERS = ("missing", "taking", "mvlgamma", "operands", "wraps")  # of modules
_BASES = ("RNNBase", "RNNCellBase")  # of layers, which alone are of use


class Example(NamedTuple):
    """Statements, and what each of them prints."""

    statements: tuple[str, ...]

    def shown(self) -> str:
        """The statements as a session, run now."""
        source = "".join(f">>> {s}\n" for s in self.statements)
        test = doctest.DocTestParser().get_doctest(source, {"eg": eg, "np": np}, source, None, 0)
        heard = _Listener()
        heard.run(test, out=lambda text: None)
        return "".join(f">>> {s}\n{heard.printed[i]}" for i, s in enumerate(self.statements))


class _Listener(doctest.DocTestRunner):
    """Keeps what each statement prints; an error is the example's fault."""

    def __init__(self) -> None:
        super().__init__(verbose=False)
        self.printed: list[str] = []

    def report_success(self, out: Any, test: Any, example: Any, got: str) -> None:
        self.printed.append(got)

    def report_failure(self, out: Any, test: Any, example: Any, got: str) -> None:
        self.printed.append(got)

    def report_unexpected_exception(self, out: Any, test: Any, example: Any, info: Any) -> None:
        raise RuntimeError(f"{example.source.strip()}: {info[1]}") from info[1]


@cache
def examples(page: str) -> dict[str, Example]:
    """The examples in a page's file, by name."""
    found: dict[str, Example] = {}
    for line in (EXAMPLES / f"{page}.txt").read_text(encoding="utf-8").splitlines():
        name, _, text = line.partition(": ")
        if not text or name in found:
            raise ValueError(f"examples/{page}.txt: {line!r} is no example, or a second one")
        found[name] = Example(tuple(text.split(" ;; ")))
    return found


def _home(value: Any) -> str:
    """The page of a function of everygrad itself, by the folder of its ops."""
    parts = getattr(inspect.unwrap(value), "__module__", "").split(".")
    folder = parts[2] if parts[:2] == ["everygrad", "ops"] and len(parts) > 3 else "other"
    return {"loss": "nn"}.get(folder, folder if folder in PAGES else "other")


def _is_documented(value: Any) -> bool:
    return (
        callable(value) and not inspect.ismodule(value) and not isinstance(value, eg.dtypes.DType)
    )


@cache
def names() -> dict[str, dict[str, Any]]:
    """Every public function by the page it is on."""
    found: dict[str, dict[str, Any]] = {page: {} for page in PAGES}
    for page in PAGES:  # an example says on which page its name is
        if PAGES[page][1] == "eg." and page != "aliases":
            found[page] |= {n: getattr(eg, n) for n in examples(page)}
    placed = {n for page in found.values() for n in page}
    for name in eg.__all__:
        value = getattr(eg, name)
        if name not in placed and _is_documented(value):
            found[_home(value)][name] = value
    for page in ("linalg", "fft", "special"):
        module = import_module(f"everygrad.{page}")
        members = {n: v for n, v in vars(module).items() if inspect.isfunction(v)}
        found[page] = {n: v for n, v in members.items() if n[0] != "_" and n not in _HELPERS}
    found["layers"] = _layers()
    found["functional"] = _functional()
    found["init"] = _initialisers()
    known = {*eg.__all__, *torch_names.SAME_METHODS, *torch_names.OWN_PROPERTIES}
    known |= {n for group in torch_names.OWN_METHODS.values() for n in group} | {"rebind"}
    for name, value in vars(eg.Tensor).items():
        new = name not in known or (isinstance(value, property) and name == "grad")  # eg.grad too
        if name[0] != "_" and new and hasattr(eg.Tensor, name):
            found["tensor"][name] = value
    own = {n for group in torch_names.OWN_FUNCTIONS.values() for n in group}
    values = {n: getattr(eg, n) for n in own}
    found["aliases"] = {n: v for n, v in values.items() if _is_documented(v) and v is not tuple}
    return found


def _layers() -> dict[str, Any]:
    """The classes of `eg.nn`."""
    public = {n: getattr(eg.nn, n) for n in dir(eg.nn) if n[0].isupper()}
    found = {n: v for n, v in public.items() if inspect.isclass(v)}
    return {n: v for n, v in found.items() if issubclass(v, eg.nn.Module) and n not in _BASES}


def _functional() -> dict[str, Any]:
    """The functions of `eg.nn.functional` that `eg` has not."""
    module = import_module("everygrad.nn.functional")
    hidden = {*module._HELPERS, *_HELPERS, *eg.__all__}
    found = {n: v for n, v in vars(module).items() if inspect.isfunction(v) and n not in hidden}
    return {n: v for n, v in found.items() if n[0] != "_"}


def _is_from(value: Any, module: str) -> bool:
    return getattr(inspect.unwrap(value), "__module__", "") == module if callable(value) else False


def _initialisers() -> dict[str, Any]:
    """What fills a tensor, by both names it may have, and the gain of an activation."""
    module = import_module("everygrad.nn.init")
    members = {n: v for n, v in vars(module).items() if _is_from(v, module.__name__)}
    both = {n for n in members if n[0] != "_" and (n.endswith("_") or f"{n}_" in members)}
    return {n: members[n] for n in sorted({*both, "calculate_gain"} & {*members})}


def example_of(page: str, name: str, value: Any) -> str | None:
    """The example of a name as a session; None if it has none."""
    if name in examples(page):
        return examples(page)[name].shown()
    parsed = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
    if not parsed:
        return None
    shown = []
    for one in parsed:
        first, *more = one.source.rstrip("\n").split("\n")
        lines = [f">>> {first}", *(f"... {line}" for line in more)]
        shown.append("\n".join(lines) + "\n" + one.want)
    return "".join(shown).replace(">>> import everygrad as eg\n", "")


def _summary(value: Any) -> str:
    """A docstring without its examples."""
    doc = inspect.getdoc(value.fget if isinstance(value, property) else value) or ""
    kept = [part for part in doc.split("\n\n") if not part.lstrip().startswith((">>>", "..."))]
    return "\n\n".join(_indented(part) for part in kept)


def _indented(part: str) -> str:
    """A paragraph; a list of parameters keeps its columns."""
    columns = any(line.startswith(" ") or "  " in line.strip() for line in part.splitlines())
    return "```text\n" + part + "\n```" if columns else part


def _signature(name: str, value: Any) -> str:
    if isinstance(value, property) or not callable(value):
        return name
    try:
        found = inspect.signature(value)
    except ValueError:
        return name
    shown = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name != "names"]
    plain = found.replace(parameters=shown, return_annotation=found.empty)
    # a default that is a function is shown by its name, without its address
    return re.sub(r"<function (\w+) at \w+>", r"\1", f"{name}{plain}")


def entries(page: str) -> Iterator[str]:
    prefix = PAGES[page][1]
    for name, value in sorted(names()[page].items()):
        shown = example_of(page, name, value)
        if shown is None:
            raise ValueError(f"{prefix}{name} has no example: add one to examples/{page}.txt")
        head = f"### `{prefix}{_signature(name, value)}`"
        yield f"{head}\n\n{_summary(value)}\n\n```pycon\n{shown}```"


def pages() -> dict[Path, str]:
    """What each page should say."""
    made = {}
    for page, (title, _) in PAGES.items():
        head = f"# {title}\n\nMade by `python -m devtools.reference` from docstrings and examples."
        made[FOLDER / f"{page}.md"] = "\n\n".join([head, *entries(page)]) + "\n"
    rows = [f"- [{title}]({page}.md): {len(names()[page])}" for page, (title, _) in PAGES.items()]
    head = "# Reference\n\nMade by `python -m devtools.reference`; examples know `eg` and `np`."
    made[FOLDER / "README.md"] = head + "\n\n" + "\n".join(rows) + "\n"
    return made


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check compare them; 1 if one is stale, 2 for a wrong call."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m devtools.reference [--check]", file=sys.stderr)
        return 2
    stale = [
        (path, text)
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if arguments:
            print(f"{path} is stale: run python -m devtools.reference", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 1 if arguments and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
