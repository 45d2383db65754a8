"""What a module is made of and what it costs: shapes, parameters, operations, activations."""

from __future__ import annotations

from typing import Any, NamedTuple

from everygrad.autograd.modes import no_grad
from everygrad.autograd.trees import leaves_of
from everygrad.backends import base
from everygrad.compiler import costs
from everygrad.core.context import profiling, watcher
from everygrad.core.scopes import Scope, Settings
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.nn.module import Module

_COLUMNS = ("module", "output shape", "parameters", "flops", "activation bytes")


class ModuleRow(NamedTuple):
    """One call of one module; what is below it is counted in."""

    name: str
    kind: str
    depth: int
    shapes: tuple[tuple[int, ...], ...]
    parameters: int
    flops: int
    nbytes: int
    is_leaf: bool


def _ignore(op: Any, inputs: Any, result: Any) -> None:
    """Sees an op and does nothing."""


class _Counter(Scope):
    """Counts the operations of each op, for every module that is running."""

    watches = True

    def __init__(self) -> None:
        super().__init__()
        self.running: list[list[int]] = []
        self.total = 0

    def settings(self) -> Settings:
        # a watcher too: while there is one, compiled functions run op by op
        return ((profiling, self), (watcher, _ignore))

    def run(self, backend: base.Backend, op: Any, arrays: list[Any], params: dict[str, Any]) -> Any:
        """One op on a backend."""
        out = backend.run(op, arrays, params)
        if out is not NotImplemented:  # otherwise its parts come next, and are counted
            inputs = [tuple(a.shape) for a in arrays]
            self.add(costs.flops(op, tuple(out.shape), inputs, params))
        return out

    def add(self, flops: int) -> None:
        self.total += flops
        for count in self.running:
            count[0] += flops


class Summary:
    """The rows of a summary; printed, it is a table."""

    def __init__(self, rows: list[ModuleRow], parameters: int, trained: int, flops: int) -> None:
        self.rows = rows
        self.parameters = parameters
        self.trainable_parameters = trained
        self.flops = flops
        self.activation_bytes = sum(row.nbytes for row in rows if row.is_leaf)

    def __str__(self) -> str:
        table = [_COLUMNS, *(_cells(row) for row in self.rows)]
        widths = [max(len(cells[k]) for cells in table) for k in range(len(_COLUMNS))]
        lines = []
        for cells in table:
            first, second, *numbers = cells
            left = f"{first:<{widths[0]}}  {second:<{widths[1]}}"
            right = [f"{n:>{w}}" for n, w in zip(numbers, widths[2:], strict=True)]
            lines.append("  ".join([left, *right]).rstrip())
        lines.insert(1, "-" * max(map(len, lines)))
        fixed = self.parameters - self.trainable_parameters
        lines.append(lines[1])
        lines.append(
            f"{self.parameters:,} parameters, {fixed:,} of them fixed; {self.flops:,} flops; "
            f"{self.activation_bytes:,} bytes of activations"
        )
        return "\n".join(lines)

    __repr__ = __str__


def _cells(row: ModuleRow) -> tuple[str, ...]:
    label = "  " * row.depth + (f"{row.name}: {row.kind}" if row.name else row.kind)
    shown = ", ".join(str(s) for s in row.shapes) or "-"
    return label, shown, f"{row.parameters:,}", f"{row.flops:,}", f"{row.nbytes:,}"


class _Watch:
    """Hooks on every module that note what each call gives."""

    def __init__(self, module: Module, counter: _Counter) -> None:
        self.counter = counter
        self.rows: list[ModuleRow | None] = []
        self.open: list[tuple[int, list[int]]] = []
        self.names = {id(m): name for name, m in module.named_modules()}
        self.handles: list[Any] = []

    def attach(self, module: Module) -> None:
        for m in module.modules():
            self.handles.append(m.register_forward_pre_hook(self.before))
            self.handles.append(m.register_forward_hook(self.after, always_call=True))

    def detach(self) -> None:
        for handle in self.handles:
            handle.remove()

    def before(self, module: Module, args: Any) -> None:
        count = [0]
        self.open.append((len(self.rows), count))
        self.counter.running.append(count)
        self.rows.append(None)

    def after(self, module: Module, args: Any, out: Any) -> None:
        at, count = self.open.pop()
        self.counter.running.pop()
        made = [t for t in leaves_of(out) if isinstance(t, Tensor)]
        self.rows[at] = ModuleRow(
            self.names.get(id(module), "").rpartition(".")[2],
            type(module).__name__,
            len(self.open),
            tuple(t.shape for t in made),
            sum(p.size for p in module.parameters()),
            count[0],
            sum(t.size * t.dtype.itemsize for t in made),
            not any(True for _ in module.children()),
        )


def summary(module: Module, *inputs: Any, **kwargs: Any) -> Summary:
    """A table of the modules that a call runs: shapes, parameters, flops, bytes of their results.

    The module is called once on the inputs, in evaluation mode and without a graph; nothing of it
    changes. Operations are those that the records of ops give, two for a multiply-add.

    >>> import everygrad as eg
    >>> from everygrad import nn
    >>> print(nn.summary(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), eg.ones((2, 4))))
    module       output shape  parameters  flops  activation bytes
    --------------------------------------------------------------
    Sequential   (2, 8)                40    144                64
      0: Linear  (2, 8)                40    128                64
      1: ReLU    (2, 8)                 0     16                64
    --------------------------------------------------------------
    40 parameters, 0 of them fixed; 144 flops; 128 bytes of activations
    """
    if not isinstance(module, Module):
        raise ArgumentError(f"summary: takes a Module, got {type(module).__name__}")
    if not inputs and not kwargs:
        raise ArgumentError("summary: needs an input to call the module on")
    counter = _Counter()
    watch = _Watch(module, counter)
    modes = [(m, m.training) for m in module.modules()]
    try:
        watch.attach(module)
        module.eval()
        with no_grad(), counter:
            module(*inputs, **kwargs)
    finally:
        watch.detach()
        for m, mode in modes:
            m.training = mode
    held = list(module.parameters())
    trained = sum(p.size for p in held if p.requires_grad)
    rows = [row for row in watch.rows if row is not None]
    return Summary(rows, sum(p.size for p in held), trained, counter.total)
