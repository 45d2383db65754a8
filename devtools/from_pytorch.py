"""Writes docs/from-pytorch.md: which names of PyTorch work here, and what to do about the others.

`python -m devtools.from_pytorch` writes the page, `--check` only says whether it is fresh. It is
made from the table of names (`core/torch_names`), from the tables of absent names that parts of the
package keep, and from PyTorch's own lists.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from devtools import torch_lists
from everygrad.core import torch_names

PAGE = Path(__file__).parents[1] / "docs" / "from-pytorch.md"

# Where parts of the package keep what they lack: a module, the name of its table, and the part of
# PyTorch the table is about. "" as the part: the table has one for each part, by these names.
TABLES = (
    ("everygrad.core.torch_absent", "ABSENT", ""),
    ("everygrad.core.torch_optim_names", "ABSENT", "torch."),
    ("everygrad.core.torch_data_names", "ABSENT", "torch.utils.data"),
    ("everygrad.core.torch_names", "DISTRIBUTIONS_ABSENT", "torch.distributions"),
)

HABITS = (
    (
        "`x.max(1)`, `x.max(dim=1)`",
        "the same pair of values and indices",
        "`x.max(axis=1)` is the Array API's, one tensor; so with `min`, `median` and `sort`",
    ),
    (
        "`x.std(dim=0)`, `x.var(dim=0)`",
        "the same, divided by n - 1",
        "`x.std()` and `x.std(axis=0)` divide by n, as NumPy does; `correction=1` says it",
    ),
    ("`x.size(0)`, `x.size()`", "the same", "`x.size` alone is the number of elements"),
    (
        "`x.repeat(2, 1)`",
        "the same",
        "`x.repeat(2)` is the Array API's, which is `repeat_interleave`; `tile` for the other",
    ),
    (
        "`x.squeeze(1)` of an axis that is not 1",
        "`x.squeeze(dim=1)`, which leaves it alone",
        "by position the Array API's, which refuses it",
    ),
    (
        "`F.unfold(x, 2, 1)`",
        "`F.unfold(x, kernel_size=2, dilation=1)`",
        "by position an axis and a size are taken; two numbers that may be either are refused",
    ),
    (
        "`x.nonzero()`",
        "a tuple of vectors",
        "`x.nonzero(as_tuple=False)` and `argwhere` are PyTorch's matrix",
    ),
    (
        "`torch.equal(x, y)`",
        "`bool((x == y).all())`",
        "`eg.equal` compares element by element, as the Array API has it",
    ),
    (
        "`torch.take(x, i)`",
        "`x.reshape(-1).take(i)`",
        "`take` goes along axis 0 unless another is given",
    ),
    (
        "`torch.meshgrid(a, b)`",
        '`meshgrid(a, b, indexing="ij")`',
        'the default is "xy", as in NumPy',
    ),
    (
        "`x.add_(y)`, `x.zero_()`",
        "`x = x + y`, `x[...] = 0`",
        "values never change: a name gets another value. `x += y` and `x[i] = v` work",
    ),
    (
        "`x[0].zero_()`, writes to views",
        "`x[0] = 0`",
        "a write to a view of a tensor that is still in use is refused",
    ),
    (
        "`p.data`",
        "the same, for reading and writing",
        "one that was taken earlier does not follow when p changes; writing to it is refused then",
    ),
    (
        '`torch.device("cuda")`',
        "the same: a string that has `.type` and `.index`",
        "`x.device` is one; a plain string serves everywhere",
    ),
    (
        "`torch.sort(x)`",
        "`eg.sort(x, dim=-1)`",
        "without `dim` it is the Array API's, one tensor",
    ),
    (
        "`torch.linalg.solve(A, b)` of a batch of vectors",
        "`eg.linalg.solve(A, b[..., None])[..., 0]`",
        "as in NumPy, only a b with one axis is a vector",
    ),
    (
        "`torch.var_mean(x)`, `std_mean`",
        "the same, divided by n - 1",
        "only PyTorch has them, so they are PyTorch's",
    ),
    (
        "`import torch.utils.data`, `torch.func`, `torch.cuda.amp`",
        "`everygrad.utils.data`, `everygrad.func`, `everygrad.cuda.amp`",
        "taught: `eg.data`, the functions of `eg` itself, `eg.amp`",
    ),
    (
        "`torch.utils.tensorboard.SummaryWriter`",
        "`everygrad.utils.tensorboard.SummaryWriter`",
        "tensorboardX's, or PyTorch's, given our tensors",
    ),
    (
        "`torch.backends.cudnn.benchmark = True`",
        "the same",
        "taken; kernels are chosen by measuring anyway",
    ),
    (
        "`backward(ctx, g)` of a `Function`",
        "`vjp(g, out, *inputs)`",
        "nothing need be saved by hand",
    ),
    (
        "`x.view(dtype)`",
        "`x.numpy().view(...)`",
        "`view` is `reshape`, which copies only where it must",
    ),
    ("`torch.compile(f)`", "`eg.jit(f)`", "`eg.compile` is the same"),
    (
        "`x.item()` in a compiled step",
        "return the tensor",
        "inside `jit` values are not known; `where` in place of `if`",
    ),
)
START = """# From PyTorch

Made by `python -m devtools.from_pytorch`: change the tables it names, not this page.

One thing has one taught name here, the [Array API](array-api.md)'s where it has one. What every
PyTorch program says is understood all the same, at no cost to the calls that use the taught names:

```python
import everygrad as eg

x = eg.arange(6).float().view(2, 3)
values, indices = x.max(dim=1)
print(eg.cat([x, x], dim=0).size(), x.transpose(0, 1).mean(dim=-1, keepdim=True).shape)
print(values.tolist(), indices.tolist())
for wrong in (lambda: x.zero_, lambda: eg.cumsom):
    try:
        wrong()
    except AttributeError as error:
        print(error)
```
```text
(4, 3) (3, 1)
[2.0, 5.0] [2, 2]
Tensor has no 'zero_'; in place of PyTorch's zero_ use x[...] = 0
everygrad has no 'cumsom'; the nearest are 'cumsum' and 'cummin'
```

Scripts run with `torch` standing for everygrad: a nanoGPT with its training loop and a translator
(packed LSTMs, attention, checkpoints) unchanged, a Llama with one line changed (`div_`), a ResNet
with all that people put around one with three (`mul_`, `div_`, `sub_`): `tests/api/ports`.
"""


def reasons() -> dict[str, dict[str, str]]:
    """What each part of PyTorch has that is not here, from the tables that parts keep."""
    found: dict[str, dict[str, str]] = {}
    for module, name, part in TABLES:
        if find_spec(module) is None or not hasattr(import_module(module), name):
            continue
        table: Mapping[str, object] = getattr(import_module(module), name)
        if part in ("", "torch."):
            named = {f"{part}{key}": value for key, value in table.items()}
        else:
            named = {part: table}
        for key, value in named.items():
            if not isinstance(value, Mapping):
                raise TypeError(f"{module}.{name}: {key} must be a table of names, got {value!r}")
            found.setdefault(key, {}).update({str(k): str(v) for k, v in value.items()})
    return found


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |")
    return "\n".join(lines)


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)


def other_names() -> str:
    """Names that are another name of one that is taught."""
    both = {**torch_names.SAME_FUNCTIONS, **torch_names.SAME_METHODS}
    by_taught: dict[str, list[str]] = {}
    for alias, taught in both.items():
        if alias != taught:
            by_taught.setdefault(taught, []).append(alias)
    rows = [(code(sorted(names)), f"`{taught}`") for taught, names in sorted(by_taught.items())]
    return table(("elsewhere", "taught here"), rows)


def own_names() -> str:
    """Functions and methods that only another library has."""
    rows = []
    for kind, tables in (
        ("functions", torch_names.OWN_FUNCTIONS),
        ("methods", torch_names.OWN_METHODS),
        ("attributes", {"queries": torch_names.OWN_PROPERTIES}),
    ):
        names = sorted({n for group in tables.values() for n in group})
        rows.append((kind, code(names)))
    return table(("", "work as PyTorch's do"), rows)


def refused() -> str:
    """Names that are answered with what to use."""
    rows = [(f"`eg.{n}`", cure) for n, cure in sorted(torch_names.FUNCTIONS.items())]
    rows += [(f"`x.{n}`", cure) for n, cure in sorted(torch_names.METHODS.items())]
    names = code(f"x.{n}" for n in torch_names.IN_PLACE)
    rows.append((names, "`x = x.add(y)` and the like, `x += y`, `x[i] = v`"))
    return table(("asked for", "answered with"), rows)


def absent() -> str:
    """Parts of PyTorch: how much of each is here, and why the rest is not."""
    parts = []
    kept = reasons()
    known = [*torch_lists.FUNCTIONS_OF, *(p for p in torch_lists.CLASSES_OF if is_here(p))]
    for part in known:
        names = torch_lists.names_of(part)
        lacking = {**torch_lists.absent(part)}
        lacking = {n: kept.get(part, {}).get(n) or why for n, why in lacking.items()}
        by_reason: dict[str, list[str]] = {}
        for name, why in lacking.items():
            by_reason.setdefault(why, []).append(name)
        parts.append(f"### `{part}`: {len(names) - len(lacking)} of {len(names)}")
        if lacking:
            rows = [(code(sorted(group)), why) for why, group in sorted(by_reason.items())]
            parts.append(table(("not here", "why, or what to use"), rows))
    return "\n\n".join(parts)


def is_here(part: str) -> bool:
    path = torch_lists.CLASSES_OF[part]
    parent = path.rpartition(".")[0]
    return find_spec(parent) is not None and find_spec(path) is not None


def page() -> str:
    """The text of docs/from-pytorch.md."""
    words = [(f"`{k}=`", code(f"{n}=" for n in names)) for k, names in torch_names.KEYWORDS.items()]
    words.append((code(f"{n}=" for n in torch_names.FIRST), "the first parameter"))
    for op, names in torch_names.FROM_ZERO.items():
        both = (code(f"{n}=" for n in side) for side in (names, names.values()))
        words.append(tuple(f"{text} of `{op}`" for text in both))
    sections = [
        START.rstrip(),
        "## Habits",
        "What no name can carry over, and where one call means two things.",
        table(("in PyTorch", "here", ""), HABITS),
        "## Parameters",
        "Each is understood wherever an op has what stands beside it; editors know them.",
        table(("elsewhere", "taught here"), words),
        "An axis before an index is understood too: `gather(x, dim, index)`, `scatter`, "
        "`index_select`, `index_add`.",
        "## Names that work",
        other_names(),
        own_names(),
        "## Names that are refused",
        refused(),
        "## What is not here",
        absent(),
    ]
    return "\n\n".join(sections) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it; 1 if it is stale, 2 for a wrong call."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m devtools.from_pytorch [--check]", file=sys.stderr)
        return 2
    text = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if arguments:
        print(f"{PAGE} is stale: run python -m devtools.from_pytorch", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
