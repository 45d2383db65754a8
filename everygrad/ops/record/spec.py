"""The Op record, the registry, and the families.

An op's whole truth stands in one place: the Python function users call (its signature and docstring
are the op's), what it computes, its derivative, a reference that is not our code, sample inputs,
and inputs it must refuse. Tensor methods, operators, stubs, kernels and tests come from here.

Glossary, the same names everywhere:
  g        the gradient coming in (reverse mode), or a tangent (forward mode)
  out      the op's result
  x, y     the op's inputs
  shape    the shape of the input whose gradient is asked for; which: its number
  axis     an axis as the user gave it; axes: a sorted tuple of axes from 0 to ndim - 1
  params   keyword parameters, already checked and hashable

A derivative rule is a function that names what it needs among `g`, `out`, `shape`, the inputs and
the parameters; what no rule names is not saved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import FunctionType
from typing import Any

from numpy import ndarray

from everygrad.amp.policy import whole
from everygrad.autograd.modes import recording
from everygrad.compiler.facts import FACTS
from everygrad.core.context import records
from everygrad.core.op import Op as CoreOp
from everygrad.core.tensor import Tensor, Wrapped, shared, stand_in, wrap
from everygrad.core.torch_names import OWN_METHODS, OWN_PROPERTIES, SAME_METHODS
from everygrad.errors import EverygradError
from everygrad.ops.record.arguments import needs_names, takes_values, taking
from everygrad.ops.record.lazy_index import METHODS, OPS

_WHERE = {name: module for module, names in OPS.items() for name in names}


class Registry(dict[str, "Op"]):
    """The ops by name. One that is not loaded yet is loaded when it is asked for; to go through
    all of them, call `ops.load_all` first."""

    def __missing__(self, name: str) -> Op:
        if name in _WHERE:
            import_module(f"everygrad.ops.{_WHERE[name]}")
        if name not in self:
            raise KeyError(name)
        return self[name]


REGISTRY = Registry()
records.by_name = REGISTRY


class _LazyMethod:
    """A method of an op that is not loaded yet."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self.module = module

    def __get__(self, tensor: Tensor | None, owner: type) -> Any:
        import_module(f"everygrad.ops.{self.module}")  # puts the method itself in this place
        return getattr(owner if tensor is None else tensor, self.name)


class _AliasMethod:
    """A method under another library's name. The first time it is asked for, the function itself
    takes its place: from then on it costs what the taught name costs."""

    def __init__(self, name: str, module: str, is_property: bool = False) -> None:
        self.name = name
        self.module = module  # of ops/aliases; "" for another name of an op
        self.is_property = is_property

    def function(self) -> Any:
        if self.module:
            found = getattr(import_module(f"everygrad.ops.aliases.{self.module}"), self.name)
            return property(found) if self.is_property else found
        taught = SAME_METHODS[self.name].rpartition(".")[2]
        own = vars(Tensor).get(taught)
        if isinstance(own, FunctionType):
            return own
        try:
            return REGISTRY[taught].function
        except KeyError:
            return getattr(sys.modules["everygrad"], taught)

    def __get__(self, tensor: Tensor | None, owner: type) -> Any:
        setattr(Tensor, self.name, self.function())
        return getattr(owner if tensor is None else tensor, self.name)


def alias_methods() -> dict[str, _AliasMethod]:
    """Every method under another library's name."""
    made = {name: _AliasMethod(name, "") for name in SAME_METHODS}
    for module, names in OWN_METHODS.items():
        made |= {name: _AliasMethod(name, module) for name in names}
    made |= {name: _AliasMethod(name, "queries", is_property=True) for name in OWN_PROPERTIES}
    return made


def make_lazy_methods() -> None:
    """Give Tensor the methods of ops that are not loaded yet, and other libraries' names."""
    for name, alias in alias_methods().items():
        setattr(Tensor, name, alias)
    for module, names in METHODS.items():
        for name in names:
            if name not in vars(Tensor):
                setattr(Tensor, name, _LazyMethod(name, module))


@dataclass(frozen=True)
class Sample:
    """One call: positional arguments (NumPy arrays stand for tensors) and keywords."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def sample(*args: Any, **kwargs: Any) -> Sample:
    return Sample(args, kwargs)


@dataclass(frozen=True)
class Refusal:
    """A call that must raise `error` with `message` (a regular expression) in its text."""

    call: Sample
    error: type[EverygradError]
    message: str


def refuse(error: type[EverygradError], message: str, *args: Any, **kwargs: Any) -> Refusal:
    return Refusal(Sample(args, kwargs), error, message)


class Rule:
    """A derivative rule bound to its op's input names: knows which values it needs."""

    def __init__(self, fn: Callable[..., Any], inputs: Sequence[str]) -> None:
        self.fn = fn
        code = fn.__code__  # inspect.signature takes ten times as long, at every import
        self.names = code.co_varnames[: code.co_argcount]
        places = {name: i for i, name in enumerate(("out", *inputs))}
        # places in (out, *inputs) of the values to save
        self.needs = frozenset(places[n] for n in self.names if n in places)
        self._sources = [(n, places.get(n, -1)) for n in self.names]

    def __call__(self, values: Sequence[Any], known: dict[str, Any]) -> Any:
        """The rule on `values` = (out, *inputs); `known` holds g, shape and the parameters."""
        return self.fn(*[values[i] if i >= 0 else known[n] for n, i in self._sources])


class Op(CoreOp):
    """The common part of every record. `function` is what users call."""

    family = "composite"

    def __init__(self, name: str, inputs: Sequence[str] = ("x",), **facts: Any) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.rules: tuple[Rule | None, ...] = ()
        # by which inputs want a gradient: whether to keep the result, and which of the inputs
        self._keep: dict[tuple[bool, ...], tuple[bool, tuple[bool, ...]]] = {}
        self.function: Callable[..., Any]
        self.methods: tuple[str, ...] = ()
        self.reference: Callable[..., Any] | str | None = None
        self.samples: Callable[[], Iterator[Sample]] = lambda: iter(())
        self.refusals: tuple[Refusal, ...] = ()
        self.notes: dict[str, Any] = {}  # what a test must know: tolerances, points to avoid
        self.namespace = ""
        self.state(**facts)

    def __repr__(self) -> str:
        return f"<op {self.name} ({self.family})>"

    def set_rules(self, rules: Sequence[Callable[..., Any] | None]) -> None:
        self.rules = tuple(None if r is None else Rule(r, self.inputs) for r in rules)

    def rule(self, i: int) -> Rule | None:
        """The derivative rule of input `i`; the last one serves all inputs of a variadic op."""
        return self.rules[min(i, len(self.rules) - 1)]

    def save(
        self, parents: Sequence[Any], payload: Any, inputs: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """The payloads the rules need: (out, *inputs) with None in place of the others."""
        if type(payload) is not ndarray:
            inputs = held(payload, parents, inputs)
        wanted = tuple([p is not None for p in parents])
        keep = self._keep.get(wanted)
        if keep is None:
            out, *kept = self.kept(wanted)
            keep = self._keep[wanted] = (out, tuple(kept))
        saved = [payload if keep[0] else None]
        saved += [t._data if k else None for t, k in zip(inputs, keep[1])]  # noqa: B905  # 0.1 us
        return tuple(saved)

    def kept(self, wanted: Sequence[bool]) -> tuple[bool, ...]:
        """Which of (out, *inputs) the rules need where these inputs want a gradient."""
        rules = [self.rule(i) for i, want in enumerate(wanted) if want]
        needs = set().union(*(r.needs for r in rules if r is not None))
        return tuple(i in needs for i in range(1 + len(wanted)))

    def restore(self, node: Any, create_graph: bool) -> list[Any]:
        """The saved payloads as tensors again, with their place in the graph if it is needed."""
        if create_graph:
            whole = node.whole
            nodes = (whole, *whole.parents)
            pairs = zip(node.saved, nodes, strict=True)
            return [None if v is None else wrap(v, n) for v, n in pairs]
        level = node.level
        if not level:
            return [None if v is None else wrap(v) for v in node.saved]
        # the pass runs in the world around this level, whose graphs the tensors inside belong to
        return [
            None if v is None else v.inner if _is_level(v, level) else wrap(v) for v in node.saved
        ]

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        """The gradient of each input, None where none is wanted."""
        values = self.restore(node, create_graph)
        known = {**node.params, "g": g} if node.params else {"g": g}
        rules = self.rules
        last = len(rules) - 1
        results: list[Any] = []
        for i, parent in enumerate(node.parents):
            rule = rules[i if i < last else last]
            if parent is None or rule is None:
                results.append(None)
            else:
                known["shape"] = parent.shape
                known["which"] = i
                results.append(rule(values, known))
        return results

    def jvp(
        self,
        out: Tensor,
        inputs: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        params: dict[str, Any],
    ) -> Tensor | None:
        """The tangent of the result, None where it is zero; NoRule where the op does not say."""
        raise NoRule(self.name)

    def explain(self, inputs: Sequence[Tensor], params: dict[str, Any]) -> None:
        """Raise a named error if these inputs are at fault; called only after a failure."""

    def portable(self, *inputs: Tensor, **params: Any) -> Tensor:
        """The op in terms of other ops."""
        raise NoRule(self.name)


def _is_level(payload: Any, level: int) -> bool:
    return isinstance(payload, Wrapped) and payload.transparent and payload.level == level


class NoRule(Exception):  # noqa: N818  # control flow inside the package, never seen by users
    """The op has no rule of its own here; use its portable definition."""


def same(x: Tensor) -> Tensor:
    """x under another name: assigning to one (x[i] = v, x += y) leaves the other as it is."""
    node = stand_in(x)._node
    if node is None or not recording():
        return wrap(shared(x))
    # a leaf cannot be assigned to while its ops are recorded: the name may serve twice
    return x if node.is_leaf else wrap(shared(x), node)


def held(payload: Any, parents: Sequence[Any], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The inputs as a node may save them, by their payloads.

    Inside a transformation that alone would lose the graph an input has further out, and with it
    the derivative of this node's gradient with respect to what is out there.
    """
    hold = getattr(payload, "hold", None)
    if hold is None:
        return inputs
    pairs = zip(inputs, parents, strict=True)
    return [hold(t) if t._node is not None and p is None else t for t, p in pairs]


def register(
    op: Op,
    function: Callable[..., Any],
    *,
    methods: Sequence[str] = (),
    reference: Callable[..., Any] | str | None = None,
    samples: Callable[[], Iterator[Sample]] | None = None,
    refuses: Sequence[Refusal] = (),
    namespace: str = "",
    careful: bool = False,
    by_itself: bool = False,
    scalar_rows: str = "",
    **facts_and_notes: Any,
) -> None:
    """Enter an op into the registry and give Tensor its methods. `careful`: the function looks at
    its arguments itself, and as a method needs nobody around it to do so; `by_itself`: nowhere.
    `scalar_rows`: see `arguments.taking`.

    Of the rest, what `compile.facts` names is stated as facts of the op. Notes are what the tests
    over the registry must know:
      kinds      the dtypes a composite or kernel takes, a key of families.KINDS
      gives      "index": integer results are int64; "accumulated": sums of integers are 64 bits
      flat       the result never carries a derivative, though it is a composite
      by_values  the size of the result depends on values: not inside jit, vmap or the null device
      absent     {device: what it says}: devices that refuse the op by name
      torch      PyTorch's counterpart as "module:name", or as a function of (torch, *arguments);
                 None where it has none
      tested_as  the function to test in place of the op, where part of a result is arbitrary
      opaque     there is no definition in other ops
      iterative  the definition comes nearer by steps: its derivative is not the result's
      coarse     the result is rounded to few digits
    """
    assert op.name not in REGISTRY, f"op {op.name} is defined twice"
    by_itself = by_itself or hasattr(function, "__signature__")  # `elementwise` made it
    public = not by_itself and namespace != "internal"
    if scalar_rows:
        function.scalar_rows = scalar_rows  # type: ignore[attr-defined]
    op.function = taking(function) if public else function
    op.methods = tuple(methods)
    op.reference = reference
    op.samples = samples or op.samples
    op.refusals = tuple(refuses)
    op.state(**{k: v for k, v in facts_and_notes.items() if k in FACTS})
    op.notes = {k: v for k, v in facts_and_notes.items() if k not in FACTS}
    op.namespace = namespace
    REGISTRY[op.name] = op
    # a method that takes nothing but axes and shapes beside its tensor is left as fast as it is
    careful = careful or op.family == "reduction"
    careful = careful or not (takes_values(function) or needs_names(function))
    checked = public and (bool(scalar_rows) or not careful)
    method = op.function if checked else function
    for name in op.methods:
        setattr(Tensor, name, method)


def with_options(op: Op, function: Callable[..., Any]) -> None:
    """What users call for an elementwise op that has options besides: they choose other ops."""
    op.function = function
    for name in op.methods:
        setattr(Tensor, name, function)


def give_methods(**methods: Any) -> None:
    """Attributes of Tensor that are no ops: conversions, printing, hooks."""
    for name, value in methods.items():
        setattr(Tensor, name, value)


def composite(
    *, methods: Sequence[str] | None = None, name: str | None = None, **facts: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Family 1: a plain function of other ops; nothing else to write."""

    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        own = name or fn.__name__
        op = Op(own, fn.__code__.co_varnames[:1])
        fn = whole(own, fn) if "precision" in facts else fn
        register(op, fn, methods=(own,) if methods is None else methods, **facts)
        return fn

    return enter
