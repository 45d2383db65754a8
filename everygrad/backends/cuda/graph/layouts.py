"""Channels-last images in compiled functions: the layout in which tensor cores convolve.

Given (batch, channels, height, width) in order, cuDNN rearranges images and results of every
convolution. Here convolutions and pooling become ops on (batch, height, width, channels), and what
lies between them, elementwise ops, reductions and concatenations, is computed in that layout too. A
value that others want in the order of its axes is a permuted view, which they read by strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.conv.convolution import problem_of
from everygrad.backends.cuda.graph.rewriting import BackendOp
from everygrad.compiler.ir import LEAVES, Graph, Value
from everygrad.compiler.rewrite import Rewriter
from everygrad.compiler.views import view_of
from everygrad.core.context import records
from everygrad.core.shapes import Shape

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda
    from everygrad.dtypes import DType

_TO_LAST = (0, 2, 3, 1)  # axes of an image, channels last
_FROM_LAST = (0, 3, 1, 2)


class _Image(NamedTuple):
    """What an op's record asks of an input, channels first."""

    shape: Shape
    dtype: DType


def permuted(shape: Shape, axes: Shape) -> Shape:
    return tuple(shape[a] for a in axes)


def _last_op(name: str) -> BackendOp:
    """The op on channels-last images and weights."""

    def result(*args: Any, **params: Any) -> tuple[Shape, DType]:
        given = [_Image(permuted(a.shape, _FROM_LAST), a.dtype) for a in args]
        plain = records.by_name[name].result
        assert plain is not None  # every kernel op says what it gives
        shape, dtype = plain(*given, **params)
        return permuted(shape, _TO_LAST), dtype

    return BackendOp(f"{name}_last", result)


CONVOLUTIONS = {n: _last_op(n) for n in ("conv2d", "conv2d_input", "conv2d_weight")}
POOLING = {
    n: _last_op(n)
    for n in ("max_pool2d_value", "max_pool2d_spread", "sum_pool2d", "sum_pool2d_spread")
}


class ChannelsLastRewriter(Rewriter):
    """Images in channels-last memory wherever a convolution that `serves` accepts wants them so."""

    def __init__(self, old: Graph, serves: Callable[[Value], bool]) -> None:
        super().__init__()
        self.serves = serves
        self.returned = {view_of(v).base for v in old.outputs}
        self.last: dict[Value, Value] = {}  # by new value: the channels-last one it is a view of
        # by channels-last value: of which value, over which axes, it is the sum
        self.sums: dict[Value, tuple[Value, frozenset[int]]] = {}
        self.joined: dict[str, Callable[[Value, list[Value]], Value | None]] = {
            "concat": self.concat
        }

    def replacement(self, v: Value, args: list[Value]) -> Value | None:
        if v.name in CONVOLUTIONS:
            return self.called(CONVOLUTIONS[v.name], v, args) if self.serves(v) else None
        if v.name in POOLING:
            return self.called(POOLING[v.name], v, args) if args[-1] in self.last else None
        if v.kind == "elementwise":
            return self.elementwise(v, args)
        if v.kind == "reduction":
            return self.reduction(v, args[0])
        rule = self.joined.get(v.name)
        return None if rule is None else rule(v, args)

    def moved(self, name: str, x: Value, **params: Any) -> Value:
        return self.graph.call(records.by_name[name], [x], params)

    # --- between the two layouts -----------------------------------------------------------------

    def to_last(self, x: Value) -> Value:
        """A value of up to four axes, the last three those of images, with the channels last."""
        if x in self.last:
            return self.last[x]
        if x.size == 1 and len(x.shape) < 4:
            return x
        shape = (*(1,) * (4 - len(x.shape)), *x.shape)
        if x.kind == "full":
            return self.graph.full(permuted(shape, _TO_LAST), x.params["value"], x.dtype)
        if self.is_cast_input(x):  # read by strides and written in order
            made = self.graph.call(x.op, [self.to_last(x.args[0])], x.params, x.where, x.generation)
        else:
            whole = x if x.shape == shape else self.moved("reshape", x, shape=shape)
            made = self.moved("permute_dims", whole, axes=_TO_LAST)
        self.last[x] = made
        return made

    def is_cast_input(self, x: Value) -> bool:
        """Whether it is one step from memory that is there before: a weight or an image, cast."""
        if x.kind != "elementwise" or len(x.args) != 1 or len(x.shape) != 4:
            return False
        return x.args[0].kind in LEAVES and x.args[0].shape == x.shape

    def from_last(self, made: Value) -> Value:
        found = self.moved("permute_dims", made, axes=_FROM_LAST)
        self.last[found] = made
        return found

    # --- ops -------------------------------------------------------------------------------------

    def called(self, op: BackendOp, v: Value, args: list[Value]) -> Value:
        given = [self.to_last(a) for a in args]
        return self.from_last(self.graph.call(op, given, v.params, v.where, v.generation))

    def is_wanted_last(self, v: Value, args: list[Value]) -> bool:
        """Whether at least half of the images that v is made of are channels-last, and v is no
        result: that is stored in the order of its axes, and so are the weights it may replace."""
        if len(v.shape) != 4 or v in self.returned:
            return False
        bases = {a: view_of(a).base for a in args if a.shape == v.shape}
        whole = [a for a, base in bases.items() if base.size >= a.size and base.kind != "full"]
        last = sum(a in self.last for a in whole)
        given = any(bases[a].kind == "input" for a in whole)
        return 2 * last > len(whole) - (not given and last > 0)

    def elementwise(self, v: Value, args: list[Value]) -> Value | None:
        return self.called_as_is(v, args) if self.is_wanted_last(v, args) else None

    def called_as_is(self, v: Value, args: list[Value], **changed: Any) -> Value:
        given = [self.to_last(a) for a in args]
        params = {**v.params, **changed}
        return self.from_last(self.graph.call(v.op, given, params, v.where, v.generation))

    def reduction(self, v: Value, x: Value) -> Value | None:
        """Over the same axes, wherever they are now. A sum of a sum is one."""
        if x not in self.last:
            return None
        image, axes = self.last[x], frozenset(_TO_LAST.index(a) for a in v.params["axes"])
        if v.facts.is_sum and image in self.sums:
            image, before = self.sums[image]
            axes |= before
        params = {**v.params, "axes": tuple(sorted(axes)), "keepdims": True}
        made = self.graph.call(v.op, [image], params, v.where, v.generation)
        if v.facts.is_sum:
            self.sums[made] = (image, axes)
        found = self.from_last(made)
        return found if found.shape == v.shape else self.moved("reshape", found, shape=v.shape)

    def concat(self, v: Value, args: list[Value]) -> Value | None:
        if len(v.shape) != 4 or v in self.returned:
            return None
        last = sum(a.size for a in args if a in self.last)
        if 2 * last <= v.size:
            return None
        return self.called_as_is(v, args, axis=_TO_LAST.index(v.params["axis"] % 4))


def in_channels_last(dev: Cuda, graph: Graph) -> Graph:
    """The same outputs, by channels-last convolutions where this device has engines for them; the
    graph itself where there are none."""
    dnn = dev.gpu.driver.cudnn
    known: dict[Value, bool] = {}

    def serves(v: Value) -> bool:
        if v not in known:
            known[v] = _is_served(dev, dnn, v)
        return known[v]

    if dnn is None or not any(v.name in CONVOLUTIONS and serves(v) for v in graph.values):
        return graph
    return ChannelsLastRewriter(graph, serves).run(graph)


def _is_served(dev: Cuda, dnn: Any, v: Value) -> bool:
    """Tensor cores read channels-last images; float32 is theirs where it may be rounded. Grouped
    convolutions have few channels each, and gain nothing."""
    on_tensor_cores = v.dtype.itemsize == 2 or (v.dtype is dtypes.float32 and dev.tf32)
    window = v.params["window"]
    if not on_tensor_cores or window.groups > 1 or not v.size or not all(a.size for a in v.args):
        return False
    shapes = [a.shape for a in v.args]
    problem = problem_of(v.name, shapes, v.shape, v.dtype, window, True, dev.tf32)
    return dnn.plan(problem) is not None
