"""The Tensor: a name for a value, and the value's place in the graph of derivatives.

The value is a *payload*: a backend's array (for the CPU a NumPy array), or a `Wrapped` payload that
a transformation such as `vmap` put around other tensors. Payloads never change; a Tensor may be
given another one, in `rebind` only. A tensor made by indexing, reshaping and the like is a *view*:
it knows weakly the tensors whose elements it shows (`view`), so that a write which would not reach
them is refused (`refuse_lost_write`). Methods and operators are added by the op registry
(`ops/record/spec.py`); `tensor.pyi` lists them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

from everygrad.autograd.graph import Leaf, Node
from everygrad.autograd.modes import in_inference_mode, transform_depth
from everygrad.autograd.transform_scope import GRAD, STREAM, VALUE, inside, outlasts_cycles
from everygrad.core.context import intercepted, tracing
from everygrad.core.device_name import NAMES, device
from everygrad.core.op import Op
from everygrad.core.ownership import calibrated, refcount
from everygrad.core.protocols import Layout
from everygrad.core.shapes import Shape, axis_index, size_of
from everygrad.core.torch_names import IN_PLACE, METHODS, cure
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    NoAxisError,
    ShapeError,
    ViewError,
)

_RETAIN = -1  # the key of retain_grad's hook: a second call adds no second one


class Wrapped:
    """A payload made by a transformation: `level` says which, deeper ones have higher levels.

    Subclasses give `shape`, `dtype`, `device` and `interpret`. They must not have an attribute
    `size`: dispatch's fast path takes its absence as the sign of a payload it does not know.
    """

    __slots__ = ("__weakref__", "level")
    level: int
    transparent: bool = (
        False  # True: only separates graphs; outside its level the tensor inside serves
    )

    plain: bool = False  # True: stands for a backend's array; there is no level below
    is_shard: bool = False  # True: a part of a tensor; ops of several results are not for it
    layout: Layout | None = None  # where `is_shard`: what it is beside the tensor inside

    @property
    def inner(self) -> Tensor:
        """The tensor of the level below that holds the value."""
        raise NotImplementedError

    def beside(self, x: Tensor) -> Tensor:
        """A tensor of a backend's array as one of this transformation: where `is_shard`."""
        raise NotImplementedError

    def left(self) -> Tensor | None:
        """The tensor of the level below that stands for the whole, for a name that outlives the
        transformation; None where there is none."""
        return None

    def stopped(self) -> Any:
        """The payload of the same value without any derivative."""
        return self.inner.detach()._data

    @property
    def shape(self) -> Shape:
        raise NotImplementedError

    @property
    def dtype(self) -> Any:
        raise NotImplementedError

    @property
    def device(self) -> str:
        raise NotImplementedError

    def interpret(self, op: Op, payloads: list[Any], params: dict[str, Any]) -> Any:
        """The payload of `op` applied to `payloads`, of which this one has the highest level."""
        raise NotImplementedError


class Size(int):
    """The number of elements of a tensor; called, as PyTorch does, its shape or one size of it."""

    shape: Shape

    def __call__(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[axis_index(dim, len(self.shape), "size")]


_SIZES: dict[Shape, Size] = {}  # one for each shape: making one takes longer than finding it
_MOST_SIZES = 4096


def _new_size(shape: Shape) -> Size:
    if len(_SIZES) >= _MOST_SIZES:
        _SIZES.clear()
    made = Size(size_of(shape))
    made.shape = shape
    _SIZES[shape] = made
    return made


class Tensor:
    """An n-dimensional array that remembers how it was made.

    Made by `eg.tensor`, by the creation functions and by ops; never directly.
    """

    __slots__ = ("__weakref__", "_data", "_grad", "_node", "_source")
    _data: Any
    _node: Node | None
    # of a view: (a weak reference to its source, the source's own _source), and True behind these
    # if it is the source's `data`; or None
    _source: Any

    @property
    def shape(self) -> Shape:
        return self._data.shape

    @property
    def dtype(self) -> DType:
        return FROM_NP[self._data.dtype]

    @property
    def ndim(self) -> int:
        return len(self._data.shape)

    @property
    def size(self) -> Size:
        """The number of elements; `size()` is the shape, `size(dim)` one of it, as in PyTorch."""
        shape = self._data.shape
        found = _SIZES.get(shape)
        return _new_size(shape) if found is None else found

    @property
    def device(self) -> device:
        """Where the value lives: "cpu", "cuda:0", "webgpu"; a string that knows its type and
        index."""
        return NAMES[getattr(self._data, "device", "cpu")]

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded for `backward`."""
        return stand_in(self)._node is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, value: bool = True) -> Tensor:
        """Start (or stop) recording operations on this tensor; returns the tensor itself."""
        held = stand_in(self)
        node = held._node
        if (around := inside()) is not None:
            around.changing(held, VALUE, (held._data, node), self)
        if not value:
            if node is not None and not node.is_leaf:
                raise GradientError(
                    "requires_grad_(False): this tensor is the result of an op; use detach()"
                )
            held._node = None
        elif node is None:
            if in_inference_mode():
                raise GradientError("requires_grad_ inside inference_mode(): leave it first")
            if not self.dtype.is_differentiable:
                raise DtypeError(
                    f"requires_grad_: only floating and complex tensors have derivatives, "
                    f"this one is {self.dtype}; cast it with astype() first"
                )
            held._node = Leaf(self, transform_depth())
            held._source = None  # a variable of its own, which optimisers change
        return self

    @property
    def is_leaf(self) -> bool:
        """True unless the tensor was made by a recorded op."""
        node = stand_in(self)._node
        return node is None or node.is_leaf

    @property
    def grad(self) -> Tensor | None:
        """The gradient summed here by `backward`, or None."""
        if intercepted() and (tracer := tracing.get()) is not None:
            return tracer.grad(self)
        return getattr(self, "_grad", None)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise ArgumentError(f"grad: must be a Tensor or None, got {type(value).__name__}")
            if value.shape != self.shape or value.dtype is not self.dtype:
                raise ShapeError(
                    f"grad: {value.dtype}{list(value.shape)} does not fit a tensor "
                    f"{self.dtype}{list(self.shape)}"
                )
        set_grad(self, value)

    def rebind(self, payload: Any, node: Node | None, drawn: bool = False) -> None:
        """Give this name another value. The only place where a Tensor changes.

        `drawn`: it is the state of a generator, which moves on once however often vmap draws.
        """
        if intercepted() and (tracer := tracing.get()) is not None:
            held = tracer.rebinding(self, payload)
            node = held._node if held is not self and node is self._node else node
        else:
            held = self
        if (around := inside()) is not None:
            if hasattr(held, "_data"):
                what = STREAM if drawn else VALUE
                around.changing(held, what, (held._data, held._node), self)
            else:
                around.making(held)
        held._data = payload
        held._node = node

    def detach(self) -> Tensor:
        """The same value as a constant for every derivative; nothing is copied."""
        payload = shared(self)
        return view(wrap(payload.stopped() if isinstance(payload, Wrapped) else payload), self)

    @property
    def data(self) -> Tensor:
        """The value alone, as `detach` gives it, but for writes: of a leaf they reach the tensor
        itself, and no graph knows. Assigned to, it gives a leaf another value."""
        out = self.detach()
        if out is not self and out._source is not None:
            out._source = (*out._source, True)
        return out

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise ArgumentError(f"data: takes a tensor, got {type(value).__name__}")
        if not self.is_leaf:
            raise GradientError("data: this tensor is the result of an op; detach() it first")
        if self.requires_grad and not value.dtype.is_differentiable:
            raise DtypeError(f"data: {value.dtype} has no derivatives; requires_grad_(False) first")
        refuse_lost_write(self, "data", "write to that one: x[i] = v")
        node, shape = stand_in(self)._node, self.shape
        self.rebind(shared(value.detach()), node)
        if node is not None and value.shape != shape:
            self.rebind(stand_in(self)._data, Leaf(self, node.level))  # it knows the shape

    def retain_grad(self) -> None:
        """Keep this result's gradient in `.grad` too, as leaves do."""
        if self._node is None:
            raise GradientError("retain_grad: this tensor does not require grad")
        if not self._node.is_leaf and _RETAIN not in (self._node.hooks or {}):
            owner = ref(self)

            def keep(g: Tensor) -> None:
                tensor = owner()
                if tensor is not None:
                    set_grad(tensor, g if tensor.grad is None else tensor.grad + g)

            if self._node.hooks is None:
                self._node.hooks = {}
            self._node.hooks[_RETAIN] = keep

    def __copy__(self) -> Tensor:
        """Another name for the value: connected to the graph, or like this one a leaf."""
        copy = wrap(shared(self), self._node)
        if self._node is not None and self._node.is_leaf:
            copy._node = Leaf(copy, self._node.level)
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise GradientError(
                "deepcopy: this tensor is the result of an op; copy detach(), or use clone()"
            )
        copy = type(self)()  # the payload is shared: values never change
        copy._source = None
        copy.rebind(self._data, None)
        if self._node is not None:
            copy._node = Leaf(copy, self._node.level)
        if self.grad is not None:
            copy._grad = wrap(self.grad._data)
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ArgumentError(
            "tensors are never pickled; save them with eg.save(path, obj), and send them to other "
            "processes by multiprocessing after import everygrad.data, which shares their memory"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise NoAxisError("len: a 0-d tensor has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise NoAxisError("iter: a 0-d tensor cannot be iterated; use item()")
        return _rows(self)

    __hash__ = object.__hash__

    def __dir__(self) -> list[str]:
        """Only what works: not the names that are answered with what to use in their place."""
        refused = {name for name, value in vars(Tensor).items() if isinstance(value, _Elsewhere)}
        refused |= {"_grad"}  # unset until there is one
        return [name for name in object.__dir__(self) if name not in refused]


def shared(t: Tensor) -> Any:
    """The payload of `t`, to stand under another name too: a tracer must know whose it is."""
    if intercepted() and (tracer := tracing.get()) is not None:
        (t,) = tracer.lift((t,))
    return t._data


def stand_in(t: Tensor) -> Tensor:
    """The tensor that holds the value and the node of `t` in this context: `t` itself, except for
    a tensor from outside that a tracer has captured, which is never written to."""
    if intercepted() and (tracer := tracing.get()) is not None:
        found: Tensor = tracer.stand_in(t)
        return found
    return t


def set_grad(t: Tensor, g: Tensor | None) -> None:
    """Give `t` this gradient; while a function is traced, only the tracer knows it."""
    if (around := inside()) is not None:
        around.changing(t, GRAD, t.grad)
    if intercepted() and (tracer := tracing.get()) is not None:
        tracer.set_grad(t, g)
    else:
        t._grad = g


def wrap(payload: Any, node: Node | None = None) -> Tensor:
    """A Tensor around a payload."""
    t = Tensor()
    t._data = payload
    t._node = node
    t._source = None
    return t


def view(out: Tensor, source: Tensor) -> Tensor:
    """`out`, marked as a view of `source`: it shows elements of it, in memory of its own or not."""
    if out is not source:
        earlier = source._source
        while earlier is not None and earlier[0]() is None:  # so that a chain of views stays short
            earlier = earlier[1]
        out._source = (ref(source), earlier)
    return out


def held_source(t: Tensor) -> Tensor | None:
    """A tensor that `t` is a view of and that somebody still holds; None if there is none."""
    link = t._source
    while link is not None:
        source: Tensor | None = link[0]()
        if source is not None:
            return source
        link = link[1]
    return None


def data_owner(t: Tensor) -> Tensor | None:
    """The leaf whose `data` this tensor is, to which a write goes; None if it is none's."""
    if t._source is None or len(t._source) == 2:
        return None
    owner: Tensor | None = t._source[0]()
    if owner is None or not owner.is_leaf or stand_in(owner)._data is not stand_in(t)._data:
        return None  # `refuse_lost_write` has its say
    return owner


def refuse_lost_write(t: Tensor, op: str, cure: str) -> None:
    """Refuse to write to a view of a tensor that somebody still holds: it would not change."""
    if t._source is None or not outlasts_cycles(lambda: held_source(t) is not None):
        return
    source = held_source(t)
    if source is not None:
        raise ViewError(
            f"{op}: this tensor {t.shape} is a view of a tensor {source.shape} that is still in "
            f"use, and which the write would not change; {cure}"
        )


def _rows(x: Tensor) -> Iterator[Tensor]:
    """The rows, views of x unless this loop is the only one who holds it."""
    for i in range(x.shape[0]):
        row = x[i]
        if refcount(x) <= _ONE_LOOP and row is not x:
            row._source = x._source
        yield row


def _one_loop() -> int:
    """What refcount says of an object that only a generator's local name holds."""

    def count(x: Any) -> Iterator[int]:
        yield refcount(x)

    return next(count(object()))


_ONE_LOOP = calibrated(_one_loop())


class _Elsewhere:
    """A method of PyTorch's that is none here: asking for it says what is. (A `__getattr__` would
    make every attribute of a tensor slower to reach.)"""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Tensor | None, owner: type[Tensor]) -> Any:
        raise AttributeError(f"Tensor has no {self.name!r}{cure(self.name, METHODS)}")


for _name in (*METHODS, *IN_PLACE):
    setattr(Tensor, _name, _Elsewhere(_name))
