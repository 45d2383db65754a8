"""Recurrent layers over a whole sequence, each by one persistent kernel: see `ops.nn.recurrent`.

Every block owns a few hidden units for all steps. A step is a product with the states, or going
back the gates' gradients, of all units, then what the mode makes of it; the blocks then wait for
each other at a counter in memory, one for each step. What a block reads of the weights stays in its
level 1 cache; what others wrote is read past it. There are never more blocks than half the
multiprocessors, so that all of them run at once: waiting would not end otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.array import ALIGNED, CudaArray
from everygrad.backends.cuda.kernels.copy_kernels import contiguous, copied
from everygrad.backends.cuda.source.c_types import HALVES, LAYOUTS
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel
from everygrad.backends.strided_views import permute_dims, take_slices
from everygrad.compiler.thresholds import edge
from everygrad.core.context import records
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

_BLOCK = 256
_ROWS = edge(__name__, "_ROWS", 32, "size")  # of the batch, that a block takes at a time
_COLUMNS = edge(__name__, "_COLUMNS", 64, "size")  # of the product, that one block makes
# terms of a block's product at one step, above which a library's product pays
_TERMS = edge(__name__, "_TERMS", 1 << 19, "elements")
_CHUNK = {4: 256, 8: 64}  # elements of a row in shared memory at a time, by their size


def _counts(mode: str) -> Any:
    """How many gates, states, kept rows and slopes a mode has."""
    return records.by_name["rnn_reserve"].constants["modes"][mode]


class Problem(NamedTuple):
    """All that the kernels' text and launch depend on."""

    mode: str
    dtype: DType
    steps: int
    batch: int
    hidden: int
    multiprocessors: int

    @property
    def units(self) -> int:
        """Hidden units of a block."""
        return -(-self.hidden // max(1, self.multiprocessors // 2))

    @property
    def serves(self) -> bool:
        gates, few = _counts(self.mode).gates, self.steps * self.batch * self.hidden * 6 < 1 << 31
        terms = self.batch * gates * self.units * self.hidden
        return few and gates * self.units <= _COLUMNS and terms <= _TERMS


class _SequenceWriter:
    """Writes one kernel: `columns` products of rows of `depth` elements, for each row."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ("barriers", "out")

    def __init__(self, name: str, p: Problem, columns: int, depth: int) -> None:
        self.w = KernelWriter(f"{name}_{p.mode}", wide=False)
        self.p, self.mode, self.columns = p, _counts(p.mode), columns
        self.rows = min(_ROWS, p.batch)
        size = p.dtype.itemsize
        self.vector = ALIGNED // size if p.hidden % (ALIGNED // size) == 0 else 1
        self.chunk = _CHUNK[size]
        # lanes that share a sum, so that a thread has about 8 rows: it reads a weight once for all
        lanes = max(1, _BLOCK // (columns * max(1, self.rows // 8)))
        self.lanes = min(32, 1 << (lanes.bit_length() - 1))
        self.groups = _BLOCK // (columns * self.lanes)
        self.each = -(-self.rows // self.groups)
        memory = LAYOUTS[p.dtype].memory
        for given in (*self.inputs, *self.outputs):
            type = "u32" if given == "barriers" else memory
            self.w.pointer(type, given, written=given in self.outputs)
        for given, value in (
            ("steps", p.steps),
            ("batch", p.batch),
            ("hidden", p.hidden),
            ("depth", depth),
        ):
            self.w.number(value, given)

    def begin(self) -> None:
        pitch = self.chunk + self.vector
        fetched = -(-self.rows * self.chunk // (_BLOCK * self.vector))
        raw = {1: {4: "u32", 8: "u64"}[self.p.dtype.itemsize]}.get(self.vector, "uint4")
        self.w.add(
            f"typedef {LAYOUTS[self.p.dtype].register} T;",
            f"typedef Pack<T, {self.vector}> Some;",
            f"constexpr int UNITS = {self.p.units}, COLUMNS = {self.columns}, ROWS = {self.rows};",
            f"constexpr int LANES = {self.lanes}, GROUPS = {self.groups}, EACH = {self.each};",
            f"constexpr int CHUNK = {self.chunk}, PITCH = {pitch}, VECTOR = {self.vector};",
            f"constexpr int FETCHED = {fetched};",
            "__shared__ alignas(16) T held[EACH * GROUPS * PITCH];",
            "__shared__ alignas(16) T made[EACH * GROUPS * COLUMNS];",
            "const int lane = threadIdx.x % LANES, column = threadIdx.x / LANES % COLUMNS;",
            "const int place = threadIdx.x / (LANES * COLUMNS);",
            "const bool counts = place < GROUPS;",
            "const int group = counts ? place : 0;",
            "const i32 mine = blockIdx.x * UNITS + column % UNITS;",
            "const i32 row = column / UNITS * hidden + (mine < hidden ? mine : hidden - 1);",
            "const T* weights = w + row * depth;",
            "auto sigmoid = [](T x) -> T { return (T)1 / ((T)1 + exp(-x)); };",
            # rows of `a`, written by any block, times this block's columns, into `made`
            "auto product = [&](const T* a, i32 pitch, i32 first) {",
            "  Some next[FETCHED];",
            "  auto fetch = [&](i32 from) {",
            "#pragma unroll",
            "    for (int i = 0; i < FETCHED; ++i) {",
            f"      const int e = threadIdx.x + i * {_BLOCK}, r = e / (CHUNK / VECTOR);",
            "      const int k = e % (CHUNK / VECTOR) * VECTOR;",
            "      const bool there = r < ROWS && first + r < batch && from + k < depth;",
            f"      {raw} bits = {{}};",
            f"      if (there) bits = __ldcg((const {raw}*)(a + (first + r) * pitch + from + k));",
            "      next[i] = *(const Some*)&bits;",
            "    }",
            "  };",
            "  T sums[EACH];",
            "#pragma unroll",
            "  for (int i = 0; i < EACH; ++i) sums[i] = 0;",
            "  fetch(0);",
            "  for (i32 from = 0; from < depth; from += CHUNK) {",
            "    __syncthreads();",
            "#pragma unroll",
            "    for (int i = 0; i < FETCHED; ++i) {",
            f"      const int e = threadIdx.x + i * {_BLOCK}, r = e / (CHUNK / VECTOR);",
            "      const int k = e % (CHUNK / VECTOR) * VECTOR;",
            "      if (r < ROWS) *(Some*)(held + r * PITCH + k) = next[i];",
            "    }",
            "    __syncthreads();",
            "    if (from + CHUNK < depth) fetch(from + CHUNK);",
            "    const i32 left = depth - from < CHUNK ? depth - from : CHUNK;",
            "#pragma unroll 2",
            "    for (i32 k = lane * VECTOR; k < left; k += LANES * VECTOR) {",
            "      const Some by = *(const Some*)(weights + from + k);",
            "#pragma unroll",
            "      for (int i = 0; i < EACH; ++i) {",
            "        const Some x = *(const Some*)(held + (group + i * GROUPS) * PITCH + k);",
            "        for (int v = 0; v < VECTOR; ++v) sums[i] = fma(x.v[v], by.v[v], sums[i]);",
            "      }",
            "    }",
            "  }",
            "#pragma unroll",
            "  for (int i = 0; i < EACH; ++i) {",
            "    for (int o = LANES / 2; o; o /= 2)",
            "      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], o);",
            "    if (counts && lane == 0) made[(group + i * GROUPS) * COLUMNS + column] = sums[i];",
            "  }",
            "  __syncthreads();",
            "};",
            "auto arrive = [&](i32 step) {",
            "  __threadfence();",
            "  __syncthreads();",
            "  if (threadIdx.x == 0) atomicAdd(barriers + step, 1u);",
            "};",
            "auto wait = [&](i32 step) {",
            "  if (threadIdx.x == 0) {",
            "    while (*(volatile u32*)(barriers + step) < gridDim.x) {}",
            "    __threadfence();",
            "  }",
            "  __syncthreads();",
            "};",
        )

    def over_units(self, *lines: str) -> list[str]:
        """A loop of the lines over the block's units, `unit` of row `b`, which `sum(gate)` has the
        products of."""
        return [
            f"for (int e = threadIdx.x; e < ROWS * UNITS; e += {_BLOCK}) {{",
            "  const i32 b = first + e / UNITS, unit = blockIdx.x * UNITS + e % UNITS;",
            "  if (b >= batch || unit >= hidden) continue;",
            "  auto sum = [&](int gate) -> T {",
            "    return made[e / UNITS * COLUMNS + gate * UNITS + e % UNITS];",
            "  };",
            *(f"  {line}" for line in lines),
            "}",
        ]

    def finish(self) -> WrittenKernel:
        return self.w.finish(-(-self.p.hidden // self.p.units), _BLOCK)


class _ReserveWriter(_SequenceWriter):
    """Gates and states of every step, in order."""

    inputs = ("gx", "start", "w", "bias")

    def written(self) -> WrittenKernel:
        _, states, kept, _ = self.mode
        self.begin()
        self.w.add(
            f"const i32 width = {kept} * hidden, before = {states} * hidden;",
            "for (i32 t = 0; t < steps; ++t) {",
            "  if (t) wait(t - 1);",
            "  const T* last = t ? out + (t - 1) * batch * width : start;",
            "  const i32 pitch = t ? width : before;",
            "  for (i32 first = 0; first < batch; first += ROWS) {",
            # the input's part is on its way while the product is made
            f"    T early[{self.mode.gates}];",
            *(f"    {line}" for line in self.over_units(*self.fetched())),
            "    product(last, pitch, first);",
            *(f"    {line}" for line in self.over_units(*self.step())),
            "    __syncthreads();",
            "  }",
            "  arrive(t);",
            "}",
        )
        return self.finish()

    def fetched(self) -> list[str]:
        gates = self.mode.gates
        return [
            f"if (e >= {_BLOCK}) break;",
            f"const T* x = gx + (t * batch + b) * {gates} * hidden + unit;",
            f"for (int k = 0; k < {gates}; ++k) early[k] = x[k * hidden];",
        ]

    def step(self) -> list[str]:
        gates = self.mode.gates
        lines = [
            f"const T* x = gx + (t * batch + b) * {gates} * hidden + unit;",
            f"auto input = [&](int k) -> T {{ return e < {_BLOCK} ? early[k] : x[k * hidden]; }};",
            "T* keep = out + (t * batch + b) * width + unit;",
            "const T* was = last + b * pitch + unit;",
            "auto hidden_part = [&](int k) -> T { return sum(k) + bias[k * hidden + unit]; };",
        ]
        if self.p.mode == "lstm":
            body = [
                "auto gate = [&](int k) -> T { return input(k) + hidden_part(k); };",
                "const T i = sigmoid(gate(0)), f = sigmoid(gate(1));",
                "const T g = tanh(gate(2)), o = sigmoid(gate(3));",
                "const T c = f * was[hidden] + i * g;",
                "keep[0] = o * tanh(c);",
                "keep[hidden] = c;",
                "keep[2 * hidden] = i;",
                "keep[3 * hidden] = f;",
                "keep[4 * hidden] = g;",
                "keep[5 * hidden] = o;",
            ]
        elif self.p.mode == "gru":
            body = [
                "const T r = sigmoid(input(0) + hidden_part(0));",
                "const T z = sigmoid(input(1) + hidden_part(1));",
                "const T hn = hidden_part(2), n = tanh(input(2) + r * hn);",
                "keep[0] = n + z * (was[0] - n);",
                "keep[hidden] = r;",
                "keep[2 * hidden] = z;",
                "keep[3 * hidden] = n;",
                "keep[4 * hidden] = hn;",
            ]
        else:
            made = "tanh(y)" if self.p.mode == "tanh" else "max_f(y, (T)0)"
            body = ["const T y = input(0) + hidden_part(0);", f"keep[0] = {made};"]
        return [*lines, *body]


class _GradsWriter(_SequenceWriter):
    """Gradients of the gates of every step, back through time; `carry` is what passes by the
    product: the cell state's gradient, or what of a gru's state goes on."""

    inputs = ("g", "start", "w", "reserve")
    outputs = ("barriers", "out", "carry")

    def written(self) -> WrittenKernel:
        _, states, kept, slopes = self.mode
        self.begin()
        last = [
            "T* keep = out + (steps * batch + b) * width + unit;",
            "keep[0] = back;",
            *(["keep[hidden] = carry[b * hidden + unit];"] if states > 1 else []),
            *(f"keep[{k} * hidden] = 0;" for k in range(states, slopes)),
        ]
        self.w.add(
            f"const i32 width = {slopes} * hidden, taken = {kept} * hidden;",
            f"const i32 before = {states} * hidden;",
            "for (i32 t = steps - 1; t >= -1; --t) {",
            "  const bool begun = t < steps - 1;",
            "  if (begun) wait(t + 1);",
            "  for (i32 first = 0; first < batch; first += ROWS) {",
            "    if (begun) product(out + (t + 1) * batch * width, width, first);",
            *(
                f"    {line}"
                for line in self.over_units(
                    "T back = begun ? sum(0) : (T)0;",
                    *(
                        ["if (begun) back += carry[b * hidden + unit];"]
                        if self.p.mode == "gru"
                        else []
                    ),
                    "if (t < 0) {",
                    *(f"  {line}" for line in last),
                    "  continue;",
                    "}",
                    *self.step(),
                )
            ),
            "    __syncthreads();",
            "  }",
            "  if (t >= 0) arrive(t);",
            "}",
        )
        return self.finish()

    def step(self) -> list[str]:
        lines = [
            "const T* x = reserve + (t * batch + b) * taken + unit;",
            "const T* was = t ? x - batch * taken : start + b * before + unit;",
            "const T* coming = g + (t * batch + b) * before + unit;",
            "T* keep = out + (t * batch + b) * width + unit;",
            "const T gh = back + coming[0];",
        ]
        if self.p.mode == "lstm":
            return [
                *lines,
                "const T c = x[hidden], i = x[2 * hidden], f = x[3 * hidden];",
                "const T u = x[4 * hidden], o = x[5 * hidden], y = tanh(c);",
                "T& carried = carry[b * hidden + unit];",
                "const T gc = (begun ? carried : (T)0) + coming[hidden];",
                "const T dc = gc + gh * o * (1 - y * y);",
                "keep[0] = dc * u * (i * (1 - i));",
                "keep[hidden] = dc * was[hidden] * (f * (1 - f));",
                "keep[2 * hidden] = dc * i * (1 - u * u);",
                "keep[3 * hidden] = gh * y * (o * (1 - o));",
                "carried = dc * f;",
            ]
        if self.p.mode == "gru":
            return [
                *lines,
                "const T r = x[hidden], z = x[2 * hidden], n = x[3 * hidden], hn = x[4 * hidden];",
                "const T dn = gh * (1 - z) * (1 - n * n);",
                "keep[0] = dn * hn * (r * (1 - r));",
                "keep[hidden] = gh * (was[0] - n) * (z * (1 - z));",
                "keep[2 * hidden] = dn * r;",
                "keep[3 * hidden] = dn;",
                "carry[b * hidden + unit] = gh * z;",
            ]
        slope = "gh * (1 - x[0] * x[0])" if self.p.mode == "tanh" else "x[0] > 0 ? gh : (T)0"
        return [*lines, f"keep[0] = {slope};"]


# --- kernels -------------------------------------------------------------------------------------


def _problem(dev: Cuda, gx: CudaArray, w: CudaArray, mode: str) -> Problem | None:
    dtype = FROM_NP[gx.dtype]
    if gx.storage is None or w.storage is None or not dtype.is_float or dtype in HALVES:
        return None
    steps, batch, _ = gx.shape
    p = Problem(mode, dtype, steps, batch, w.shape[1], dev.multiprocessors)
    return p if p.serves else None


def _aligned(dev: Cuda, x: CudaArray) -> CudaArray:
    x = contiguous(dev, x)
    return copied(dev, x) if x.ptr % ALIGNED else x


def _barriers(dev: Cuda, steps: int) -> CudaArray:
    made: CudaArray = dev.empty((steps,), dtypes.uint32)
    dev.gpu.clear(made.ptr, 4 * steps)
    return made


def rnn_reserve(
    dev: Cuda, gx: CudaArray, start: CudaArray, w: CudaArray, b: CudaArray, mode: str
) -> Any:
    p = _problem(dev, gx, w, mode)
    if p is None:
        return NotImplemented
    given = [_aligned(dev, x) for x in (gx, start, w, b)]
    gates, _, kept, _ = _counts(mode)
    barriers = _barriers(dev, p.steps)
    out: CudaArray = dev.empty((p.steps, p.batch, kept * p.hidden), p.dtype)
    kernel = dev.planned(
        ("rnn_reserve", p),
        lambda: _ReserveWriter("rnn_reserve", p, gates * p.units, p.hidden).written(),
    )
    dev.gpu.launch(kernel, *(x.ptr for x in given), barriers.ptr, out.ptr)
    return out


def rnn_sequence(
    dev: Cuda,
    gx: CudaArray,
    start: CudaArray,
    w: CudaArray,
    b: CudaArray,
    reserve: CudaArray,
    mode: str,
) -> Any:
    if _problem(dev, gx, w, mode) is None:
        return NotImplemented
    steps, batch, _ = reserve.shape
    states = _counts(mode).states * w.shape[1]
    return contiguous(
        dev, take_slices(dev, reserve, ((0, steps, 1), (0, batch, 1), (0, states, 1)))
    )


def rnn_grads(
    dev: Cuda,
    g: CudaArray,
    gx: CudaArray,
    start: CudaArray,
    w: CudaArray,
    b: CudaArray,
    reserve: CudaArray,
    mode: str,
) -> Any:
    p = _problem(dev, gx, w, mode)
    if p is None:
        return NotImplemented
    given = [_aligned(dev, x) for x in (g, start, permute_dims(dev, w, (1, 0)), reserve)]
    gates, _, _, slopes = _counts(mode)
    barriers = _barriers(dev, p.steps)
    out: CudaArray = dev.empty((p.steps + 1, p.batch, slopes * p.hidden), p.dtype)
    carry: CudaArray = dev.empty((p.batch, p.hidden), p.dtype)
    kernel = dev.planned(
        ("rnn_grads", p),
        lambda: _GradsWriter("rnn_grads", p, p.units, gates * p.hidden).written(),
    )
    dev.gpu.launch(kernel, *(x.ptr for x in given), barriers.ptr, out.ptr, carry.ptr)
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    "rnn_reserve": rnn_reserve,
    "rnn_sequence": rnn_sequence,
    "rnn_grads": rnn_grads,
}
