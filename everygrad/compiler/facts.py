"""What the compiler and the backends ask about an op: facts of its record, never its name.

An op's record (`ops.record.spec.Op`) inherits every fact with a default that says nothing special,
and states the ones that hold. Ops that only one backend has are `OpFacts` too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad.core.shapes import Shape

if TYPE_CHECKING:
    from everygrad.compiler.expr import Program
    from everygrad.dtypes import DType

Flops = Callable[[Shape, Sequence[Shape], dict[str, Any]], int]
IndexBound = Callable[[Sequence[Shape], dict[str, Any]], int]


class Move(Enum):
    """The five movements; every other rearrangement is made of these."""

    RESHAPE = "reshape"
    PERMUTE = "permute_dims"
    BROADCAST = "broadcast_to"
    SLICE = "slice"
    UNSLICE = "unslice"

    @property
    def is_view(self) -> bool:
        """Whether the result can share the memory of what is moved; unslice adds zeros."""
        return self is not Move.UNSLICE


class Gemm(Enum):
    """How a matrix product takes its second operand."""

    PLAIN = "x @ y"
    TRANSPOSED = "x @ y.T"


class ValueCheck(Enum):
    """What an op checks of values that a device computes; it returns them unchanged."""

    RANGE = "from -size to size - 1"
    TRUE = "true"


class Neutral(NamedTuple):
    """x op right is x; if `both`, right op x is x too."""

    right: float
    both: bool


class SplitCall(NamedTuple):
    """A collective as two ops: one that starts it, and one that waits for its result."""

    start: OpFacts
    fetch: OpFacts  # a `start` of what is there from the beginning
    wait: OpFacts
    agree: OpFacts  # before the first one of a graph: all ranks are about to do the same
    describe: Callable[[Any, Shape], Any]  # (value, shape of what it takes) -> what all must see
    bucket: Callable[[Any], Any]  # those of equal keys may be one, of flat arrays; None: alone


class OpFacts:
    """The facts, with what holds for an op that states none."""

    # --- what every op has -----------------------------------------------------------------------
    name: str
    family: str  # says which of the next ones there are

    # --- what the ops of one family have ---------------------------------------------------------
    # elementwise: the typed body for inputs of these dtypes
    program: Callable[[Sequence[DType], dict[str, Any]], Program]
    # movement: (input's shape, parameters) -> the result's
    shape: Callable[..., Shape]
    # kernel: (inputs, parameters) -> the result's shape and dtype; None: a tracer sees what it is
    # made of
    result: Callable[..., tuple[Shape, DType]] | None

    # --- cost and precision ----------------------------------------------------------------------
    # what autocast runs it in: "low" (a half dtype), "float32", or "" for its inputs' own dtype
    precision: str = ""
    # functions that are no ops, end in this one, and take their inputs in its precision
    entry_points: tuple[str, ...] = ()
    # (result's shape, inputs' shapes, parameters) -> arithmetic operations
    flops: Flops | None = None
    # whether a compiler may compute it again rather than keep it: "cheap" always, "late" if the
    # value is read far away
    recompute: str = ""
    # in half dtypes, functions accurate to 20 bits serve for it
    coarse_halves: bool = False

    # --- algebra ---------------------------------------------------------------------------------
    # the number that leaves the other input as it is
    neutral: Neutral | None = None
    # applied twice, it gives back its input
    involution: bool = False
    # its first input chooses, element by element, between the second and the third
    selects: bool = False
    # elementwise and changes nothing: it stores its input contiguously
    copies: bool = False
    # of a fused derivative: the op whose derivative it is
    derivative_of: OpFacts | None = None
    # of a reduction: how two elements combine ("add", "mul", "max", "min", "and", "or"), and
    # whether the result is divided by their number
    combine: str = ""
    mean: bool = False

    # --- in a graph ------------------------------------------------------------------------------
    # which of the five movements it is
    move: Move | None = None
    # each of its elements is one of an input's
    rearranges: bool = False
    # in a graph, which has one device and no history, its input stands for it
    alias: bool = False
    # it copies from one device to another
    transfers: bool = False
    # random numbers are made of it, and nothing else is
    random: bool = False
    # it exchanges its input with other processes: in a graph every such call waits for the one
    # before it, which is one more input of it, and none is dropped, merged or computed again
    communicates: bool = False
    # of such an op: how many inputs it looks at; those behind them only come before it
    looks_at: int | None = None
    # of an op that communicates: what the host calls, of NumPy arrays and its parameters
    host: Callable[..., Any] | None = None
    # the same on a GPU: (input, result, parameters) -> a function of a stream and the addresses of
    # both, which are contiguous
    on_device: Callable[..., Callable[[int, int, int], None]] | None = None
    # of the half that gives its result: which of its inputs may lie in the memory of the result.
    # The half that starts it, its first input, is then called with `owned`
    takes_over: int | None = None
    # of an op that communicates: how `compiler.overlap` makes two of it
    split: SplitCall | None = None
    # which of the groups that could run next does: below 0, sooner than others; above, later
    priority: int = 0
    # of a start of a collective that waits for an earlier one to end: it goes on waiting until
    # somebody needs that one's result
    patient: bool = False

    # --- fusion ----------------------------------------------------------------------------------
    # a loop of a fused group can compute it
    joins_groups: bool = False
    # such a loop reads one element of the first input, at the place the second one names
    indexed_load: bool = False
    # a matrix product, and how it takes its second operand
    gemm: Gemm | None = None
    # what libraries of matrix products call it as the end of one ("gelu" is the one with tanh)
    epilogue: str = ""

    # --- indices and checks ----------------------------------------------------------------------
    # which input is an index along `axis` of the first one
    index_input: int | None = None
    # (inputs' shapes, parameters) -> a bound that every element of its result lies below
    index_bound: IndexBound | None = None
    # with one index for each row, comparing every place with it fuses and is faster than a jump
    one_hot_if_single: bool = False
    # it checks values, which it returns
    value_check: ValueCheck | None = None

    # --- in shards -------------------------------------------------------------------------------
    # kernel: (inputs' shapes, parameters) -> the ways to compute it in shards; None: as its
    # definition says (`ops.record.splits`)
    splits: Callable[..., Sequence[Any]] | None = None
    # the sets of inputs that it is linear in, all of a set at once
    linear_in: tuple[tuple[int, ...], ...] = ()
    # it is linear in all of its inputs at once, however many
    linear_in_all: bool = False

    # --- shared by its definition and the kernels of every device --------------------------------
    # said after its name of values that it cannot compute with
    failure: str = ""
    # numbers that it is computed with
    constants: Mapping[str, Any] = MappingProxyType({})

    def state(self, **facts: Any) -> None:
        """Set facts by name."""
        for name, value in facts.items():
            if name not in FACTS:
                raise TypeError(f"{self}: no fact of an op is called {name!r}")
            setattr(self, name, value)

    def intrinsic(self) -> str:
        """The scalar function (`compile.expr`) that all of an elementwise op is, of its inputs in
        their order; "" where it is more than one, or the op is of another family."""
        return ""

    @property
    def is_sum(self) -> bool:
        return self.combine == "add" and not self.mean


# those that a record may state: what has a default
FACTS = frozenset(name for name in OpFacts.__annotations__ if hasattr(OpFacts, name))
NO_FACTS = OpFacts()  # of inputs and constants
