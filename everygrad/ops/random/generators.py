"""Random numbers: Philox 4x32-10, a counter and a key in, four words out.

The same seed gives the same bits on every device and for any launch size: element i of a draw
depends on the key and on counter + i // 4 alone. The state is a tensor, so that a compiled step can
carry it from call to call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.autograd.randomness import batches, wrap_draw
from everygrad.compiler.expr import call
from everygrad.core import shapes
from everygrad.core.context import tracing
from everygrad.core.scopes import Setting
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.python.creation import arange, tensor, with_sizes
from everygrad.ops.random.words_to_numbers import FINE, INTEGER, NORMAL, UNIT, UNIT_WIDE, polar
from everygrad.ops.record.families import Elementwise, Kernel
from everygrad.ops.record.keywords import with_names
from everygrad.ops.record.spec import register, sample
from everygrad.ops.shape.joining import stack

ROUNDS = 10  # of Philox 4x32-10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # the increment of the key in each round

MULHI = Elementwise("mulhi", lambda x, y: call("mulhi", x, y), kinds="integer", random=True)


def mulhi(x: Tensor, y: Tensor) -> Tensor:
    """The high 32 bits of the product of two uint32."""
    return apply(MULHI, x, y)


register(
    MULHI,
    mulhi,
    reference="tests.support.references.basic:mulhi",
    namespace="internal",
    samples=lambda: iter(
        (sample(np.array([2**32 - 1, 7], np.uint32), np.array([2**32 - 1, 2**31], np.uint32)),)
    ),
)


def _word(value: int, like: Tensor) -> Tensor:
    return tensor(value, dtypes.uint32, like.device)


def _bits_portable(state: Tensor, count: int) -> Tensor:
    blocks = -(-count // 4)
    low = state[2] + arange(blocks, dtype=dtypes.uint32, device=state.device)
    carry = (low < state[2]).astype(dtypes.uint32)
    zero = low ^ low
    c = [low, state[3] + carry, zero, zero]
    key = [state[0], state[1]]
    m0, m1 = (_word(m, state) for m in MULTIPLIERS)
    for _ in range(ROUNDS):
        c = [mulhi(m1, c[2]) ^ c[1] ^ key[0], m1 * c[2], mulhi(m0, c[0]) ^ c[3] ^ key[1], m0 * c[0]]
        key = [key[0] + _word(WEYL[0], state), key[1] + _word(WEYL[1], state)]
    return stack(c, axis=1).reshape(-1)[:count]


# BITS and ADVANCE are seen through by the compiler (no `result`): its kernels hold what they make
BITS: Kernel = Kernel(
    "philox",
    _bits_portable,
    ("state",),
    constant=True,
    random=True,
    constants={"rounds": ROUNDS, "multipliers": MULTIPLIERS, "weyl": WEYL},
)
register(
    BITS,
    lambda state, count: apply(BITS, state, count=count),
    reference="tests.support.references.basic:philox",
    namespace="internal",
    samples=lambda: iter(
        (
            sample(np.array([1, 2, 0, 0], np.uint32), 7),
            sample(np.array([5, 0, 2**32 - 2, 3], np.uint32), 13),
        )
    ),
)


def _advanced(state: Tensor, blocks: int) -> Tensor:
    low = state[2] + _word(blocks & 0xFFFFFFFF, state)
    carry = (low < state[2]).astype(dtypes.uint32)
    high = state[3] + _word(blocks >> 32, state) + carry
    return stack([state[0], state[1], low, high])


ADVANCE: Kernel = Kernel("philox_advance", _advanced, ("state",), constant=True)
register(
    ADVANCE,
    lambda state, blocks: apply(ADVANCE, state, blocks=blocks),
    reference="tests.support.references.random:philox_advance",
    namespace="internal",
    samples=lambda: iter(
        (
            sample(np.array([1, 2, 0, 0], np.uint32), 7),
            sample(np.array([5, 0, 2**32 - 2, 2**32 - 1], np.uint32), 2**32 + 9),
        )
    ),
)


class Generator:
    """A stream of random numbers with a seed and a place in it.

    >>> import everygrad as eg
    >>> a, b = eg.Generator(7), eg.Generator(7)
    >>> bool((eg.rand((3,), generator=a) == eg.rand((3,), generator=b)).all())
    True
    """

    def __init__(self, seed: int = 0) -> None:
        self.state = tensor(_words(seed))

    def manual_seed(self, seed: int) -> Generator:
        """Start again at the beginning of the stream of `seed`."""
        self.set_state(_words(seed))
        return self

    @property
    def seed(self) -> int:
        words = self.get_state()
        return int(words[0]) | int(words[1]) << 32

    def get_state(self) -> Any:
        """The place in the stream, as a NumPy array for `set_state`."""
        return self.state.numpy().copy()

    def set_state(self, state: Any) -> None:
        words = np.asarray(state)
        if words.shape != (4,) or words.dtype != np.uint32:
            raise ArgumentError("set_state: takes what get_state gave: four uint32")
        self.state.rebind(tensor(words)._data, None, drawn=True)

    def state_dict(self) -> dict[str, Tensor]:
        """The place in the stream, for `load_state_dict` and `eg.save`.

        >>> import everygrad as eg
        >>> eg.Generator(7).state_dict()["state"].tolist()
        [7, 0, 0, 0]
        """
        return {"state": self.state.detach()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the place in the stream that `state_dict` noted."""
        words = state_dict.get("state")
        self.set_state(words.numpy() if isinstance(words, Tensor) else words)

    def bits(self, count: int, device: str = "cpu") -> Tensor:
        """`count` random uint32; the stream moves on."""
        return self.stretches(count, ((0, count),), device)[0]

    def stretches(
        self, count: int, wanted: Sequence[tuple[int, int]], device: str = "cpu"
    ) -> list[Tensor]:
        """Of `count` random uint32 those from each start to its stop, and no others are drawn; the
        stream moves on as if all were."""
        state = self.state
        made = []
        with no_grad():
            for start, stop in wanted:
                blocks, rest = divmod(start, 4)
                # the few words of the state move, the many that are drawn do not
                here = state if not blocks else apply(ADVANCE, state, blocks=blocks)
                drawn: Tensor = apply(BITS, here.to(device), count=stop - start + rest)
                made.append(drawn[rest:] if rest else drawn)
            advanced = apply(ADVANCE, state, blocks=-(-count // 4))
            state.rebind(advanced._data, None, drawn=True)
        return made


def _words(seed: int) -> Any:
    """The state at the beginning of the stream of `seed`."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ArgumentError(f"manual_seed: the seed must be from 0 to 2**64 - 1, got {seed!r}")
    return np.array([seed & 0xFFFFFFFF, seed >> 32, 0, 0], np.uint32)


_own: ContextVar[Tensor | None] = ContextVar("everygrad_generator_state", default=None)
_scoped: ContextVar[Generator | None] = ContextVar("everygrad_generator", default=None)


class _DefaultGenerator(Generator):
    """The process's stream, or that of the context: simulated ranks have one each."""

    def __init__(self) -> None:
        self._state = tensor(_words(0))

    @property
    def state(self) -> Tensor:  # type: ignore[override]  # an attribute elsewhere
        own = _seen(_own)
        return self._state if own is None else own


default_generator = _DefaultGenerator()


def own_stream() -> Setting:
    """A block whose context has a default generator of its own, which begins where the one outside
    is: what a process of its own would have."""
    return Setting(_own, tensor(default_generator.get_state()))


def _seen(var: ContextVar[Any]) -> Any:
    """The value of a variable, which a trace takes for granted."""
    if (tracer := tracing.get()) is not None:
        tracer.depends_on_variable(var)
    return var.get()


def scoped_generator(generator: Generator) -> Setting:
    """A block in which random functions of this context draw from `generator` when none is given:
    threads that fetch items of a dataset have a stream each."""
    return Setting(_scoped, generator)


class Rows(NamedTuple):
    """The part of a draw that is made here: `rows` of an axis of `whole`, from `start` on."""

    axis: int
    start: int
    rows: int
    whole: int


_sharded: ContextVar[tuple[Rows, ...]] = ContextVar("everygrad_sharded_draws", default=())


def sharded_draws(axis: int, start: int, rows: int, whole: int) -> Setting:
    """A block in which random tensors that have `rows` along `axis` are rows `start` and on of what
    would be drawn with `whole` rows: shards get the numbers that the whole would get.

    >>> import everygrad as eg
    >>> from everygrad.ops.random.generators import sharded_draws
    >>> whole = eg.rand((4, 3), generator=eg.Generator(7))
    >>> with sharded_draws(0, 2, 2, 4):
    ...     part = eg.rand((2, 3), generator=eg.Generator(7))
    >>> bool((part == whole[2:]).all())
    True
    """
    parts = []
    for part in _sharded.get():
        if (part.axis, part.rows) == (axis, rows) and whole % rows == 0:  # a part of this part
            shards = whole // rows
            start, whole = part.start * shards + start, part.whole * shards
        else:
            parts.append(part)
    return Setting(_sharded, (*parts, Rows(axis, start, rows, whole)))


def sharded_along(axis: int) -> AbstractContextManager[Any]:
    """A block in which rows that `sharded_draws` puts first lie along another axis."""
    parts = _seen(_sharded)
    if not parts:
        return nullcontext()
    return Setting(_sharded, tuple(p._replace(axis=axis) if not p.axis else p for p in parts))


def _drawn_in_shards(
    sizes: shapes.Shape, words: int, parts: Sequence[Rows], generator: Generator, device: str
) -> list[Tensor]:
    """What `draw` gives where the tensor is a part of a larger one."""
    whole = list(sizes)
    for part in parts:
        whole[part.axis] = part.whole
    count = shapes.size_of(tuple(whole))
    first = parts[0]
    if len(parts) == 1 and first.axis == 0:  # a stretch of the numbers
        row = shapes.size_of(sizes[1:])
        starts = [i * count + first.start * row for i in range(words)]
        wanted = [(at, at + first.rows * row) for at in starts]
        return [t.reshape(sizes) for t in generator.stretches(count * words, wanted, device)]
    flat = generator.bits(count * words, device)
    made = []
    for i in range(words):
        t = flat[i * count : (i + 1) * count].reshape(tuple(whole))
        for part in parts:
            before = (slice(None),) * part.axis
            t = t[(*before, slice(part.start, part.start + part.rows))]
        made.append(t)
    return made


def manual_seed(seed: int) -> Generator:
    """Seed the generator that random functions use when none is given; returns it."""
    return (_scoped.get() or default_generator).manual_seed(seed)


def draw(shape: Any, words: int, generator: Generator | None, device: str) -> list[Tensor]:
    """`words` tensors of random bits; inside a vmap that asks for it, one draw for each example."""
    size = shapes.as_shape(shape, "random")
    if any(n < 0 for n in size):
        raise ArgumentError(f"random: sizes must not be negative, got {size}")
    sizes = (*batches(), *size)
    chosen = generator or _seen(_scoped) or default_generator
    if parts := _seen(_sharded):
        parts = tuple(p for p in parts if p.axis < len(size) and size[p.axis] == p.rows)
        if parts and sizes == size:
            return _drawn_in_shards(size, words, parts, chosen, device)
    count = shapes.size_of(sizes)
    flat = chosen.bits(count * words, device)
    if words == 1:
        return [wrap_draw(flat if len(sizes) == 1 else flat.reshape(sizes))]
    return [wrap_draw(flat[i * count : (i + 1) * count].reshape(sizes)) for i in range(words)]


def _unit(shape: Any, dtype: Any, generator: Generator | None, device: str) -> Tensor:
    """Uniform in [0, 1), with all the bits the dtype holds."""
    wanted = dtypes.as_dtype(dtype or dtypes.DEFAULT_FLOAT)
    if not wanted.is_float:
        raise DtypeError(f"random: uniform numbers are floating point, not {wanted}")
    if wanted is dtypes.float64:
        return UNIT_WIDE(draw(shape, 2, generator, device), wanted)
    return UNIT(draw(shape, 1, generator, device), wanted)


def fine_unit(shape: Any, dtype: dtypes.DType, device: str, generator: Generator | None) -> Tensor:
    """Uniform numbers in (0, 1] of float32 or float64, as fine near 0 as 32 bits and more make
    them: for tails, where `rand` has steps of 2**-24."""
    if dtype is dtypes.float64:
        return 1.0 - _unit(shape, dtype, generator, device)
    return FINE(draw(shape, 1, generator, device), dtype)


def rand(
    shape: Any = (),
    *more: Any,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
    **names: Any,
) -> Tensor:
    """Uniform numbers in [0, 1)."""
    if more or names:
        options = {"dtype": dtype, "device": device, "generator": generator}
        options["requires_grad"] = requires_grad
        return with_sizes(rand, shape, more, names, options)
    out = _unit(shape, dtype, generator, device or "cpu")
    return out.requires_grad_() if requires_grad else out


class Parameters(NamedTuple):
    """What a distribution is made from: its parameters, and what is to come out."""

    values: tuple[Any, ...]  # tensors of one dtype on one device, and Python numbers
    shape: shapes.Shape
    dtype: dtypes.DType  # of the result
    inner: dtypes.DType  # of the computation: half floats are drawn in float32
    device: str


def parameters(op: str, given: Sequence[Any], shape: Any, dtype: Any, device: Any) -> Parameters:
    """A distribution's parameters, tensors or numbers, and the shape, dtype and device they imply.

    Without a shape it is the parameters' own; a shape that is given must hold them.
    """
    tensors = [v for v in given if isinstance(v, Tensor)]
    for v in given:
        if not isinstance(v, Tensor | int | float) or isinstance(v, bool):
            raise DtypeError(f"{op}: takes tensors and numbers, got {type(v).__name__} {v!r}"[:300])
    own = dtypes.result_type(*tensors) if tensors else dtypes.DEFAULT_FLOAT
    wanted = dtypes.as_dtype(dtype or (own if own.is_float else dtypes.DEFAULT_FLOAT))
    if own.is_complex or not wanted.is_float:
        bad = own if own.is_complex else wanted
        raise DtypeError(f"{op}: random numbers are drawn in floating point, not {bad}")
    place = device or (tensors[0].device if tensors else "cpu")
    common = shapes.broadcast(op, *(t.shape for t in tensors)) if tensors else ()
    sizes = common if shape is None else shapes.as_shape(shape, op)
    if tensors and shapes.broadcast(op, common, sizes) != sizes:
        raise ShapeError(f"{op}: parameters of shape {common} do not fit into the shape {sizes}")
    inner = dtypes.float64 if wanted is dtypes.float64 else dtypes.float32
    values = tuple(v.astype(inner) if isinstance(v, Tensor) else float(v) for v in given)
    return Parameters(values, sizes, wanted, inner, place)


def uniform(
    low: Any,
    high: Any,
    shape: Any = None,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """Uniform numbers in [low, high), two numbers or tensors; differentiable in both."""
    if not isinstance(low, Tensor) and not isinstance(high, Tensor) and not low <= high:
        raise ArgumentError(f"uniform: low must not be above high, got {low} and {high}")
    p = parameters("uniform", (low, high), shape, dtype, device)
    low, high = p.values
    drawn = rand(p.shape, p.dtype, p.device, generator).astype(p.inner)
    return (drawn * (high - low) + low).astype(p.dtype)


def randn(
    shape: Any = (),
    *more: Any,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
    requires_grad: bool = False,
    **names: Any,
) -> Tensor:
    """Standard normal numbers (Box and Muller)."""
    if more or names:
        options = {"dtype": dtype, "device": device, "generator": generator}
        options["requires_grad"] = requires_grad
        return with_sizes(randn, shape, more, names, options)
    out = _normal(shape, dtype, device, generator)
    return out.requires_grad_() if requires_grad else out


def rand_like(
    x: Tensor, /, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """`rand` with the shape, dtype and device of x."""
    return rand(x.shape, dtype or x.dtype, device or x.device, None, requires_grad)


def randn_like(
    x: Tensor, /, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """`randn` with the shape, dtype and device of x."""
    return randn(x.shape, dtype or x.dtype, device or x.device, None, requires_grad)


def _normal(shape: Any, dtype: Any, device: str | None, generator: Generator | None) -> Tensor:
    wanted = dtypes.as_dtype(dtype or dtypes.DEFAULT_FLOAT)
    if not wanted.is_float:
        raise DtypeError(f"randn: normal numbers are floating point, not {wanted}")
    if wanted is dtypes.float64:
        u, v = (rand(shape, wanted, device, generator) for _ in range(2))
        return polar(u, v)
    words = [draw(shape, 1, generator, device or "cpu")[0] for _ in range(2)]
    return NORMAL(words, wanted)


def normal(
    mean: Any,
    std: Any = 1.0,
    shape: Any = None,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
    **names: Any,
) -> Tensor:
    """Normal numbers with the given mean and standard deviation, numbers or tensors;
    differentiable in both."""
    if names:
        return with_names(normal, names, mean, std, shape, dtype, device, generator=generator)
    if not isinstance(std, Tensor) and not std >= 0:
        raise ArgumentError(f"normal: std must not be negative, got {std}")
    p = parameters("normal", (mean, std), shape, dtype, device)
    mean, std = p.values
    return (randn(p.shape, p.inner, p.device, generator) * std + mean).astype(p.dtype)


def bernoulli(
    p: Any, shape: Any = None, device: str | None = None, generator: Generator | None = None
) -> Tensor:
    """True with probability p, a number or a tensor of them."""
    if not isinstance(p, Tensor) and not 0 <= p <= 1:
        raise ArgumentError(f"bernoulli: p must be between 0 and 1, got {p!r}")
    given = parameters("bernoulli", (p,), shape, None, device)
    return rand(given.shape, dtypes.float32, given.device, generator) < given.values[0]


def randint(
    low: int,
    high: Any = None,
    shape: Any = None,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
    **names: Any,
) -> Tensor:
    """Integers from low to high - 1; `randint(high, shape)` begins at 0."""
    if names:
        options = {"dtype": dtype, "device": device, "generator": generator}
        return with_names(randint, names, low, high, shape, **options)
    if shape is None or high is None:  # PyTorch's randint(high, size)
        low, high, shape = 0, low, high if shape is None else shape
    if shape is None:
        raise ArgumentError("randint: takes low, high and a shape, or high and a shape")
    low, high = shapes.as_int(low, "randint", "low"), shapes.as_int(high, "randint", "high")
    if not 0 < high - low <= 2**32:
        raise ArgumentError(f"randint: needs low < high <= low + 2**32, got {low} and {high}")
    wanted = dtypes.as_dtype(dtype or dtypes.DEFAULT_INT)
    if wanted.kind in ("int", "uint"):
        limits = dtypes.iinfo(wanted)
        if low < limits.min or high - 1 > limits.max:
            raise ArgumentError(
                f"randint: {low} to {high - 1} does not fit into {wanted}, which has "
                f"{limits.min} to {limits.max}; choose a wider dtype"
            )
    (word,) = draw(shape, 1, generator, device or "cpu")
    count = tensor(high - low, dtypes.uint64, word.device)
    first = tensor(low, dtypes.int64, word.device)
    return INTEGER([word, count, first], wanted)


__all__ = [
    "Generator",
    "bernoulli",
    "default_generator",
    "manual_seed",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "uniform",
]
