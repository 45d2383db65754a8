"""Convolutions by cuDNN, called directly, so that they can be captured into a graph.

    dnn = Cudnn(stream)                # one for each device, made while it is current
    plan = dnn.plan(ConvProblem("forward", dtypes.bfloat16, x, w, y, stride, padding, dilation))
    plan(x, w, y, workspace)           # addresses; allocates nothing, may be captured

A problem is described to cuDNN as a graph of one operation. Its heuristic then lists engines, the
fastest first, and the first with our guarantees is chosen: deterministic results, accumulation in
float32 or wider, tf32 only where it is allowed. Nothing is timed, so the choice depends only on the
problem, the version and the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.driver.nvrtc import candidates
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import is_row_major, row_major
from everygrad.dtypes import DType
from everygrad.errors import CompileError, DeviceError

MAJORS = (9,)
ALIGNMENT = 16  # bytes; every tensor's address is a multiple of it
MAX_WORKSPACE = 64 << 20  # bytes of workspace that an engine may have, beside copies of its tensors
PACKS = 16  # sets of addresses that a plan caches
COPIES = 2  # of all tensors: engines may convert them to their own layouts

DTYPES = {dtypes.float32: 0, dtypes.float64: 1, dtypes.float16: 2, dtypes.bfloat16: 9}

# kinds of descriptors
_CONVOLUTION, _ENGINE, _CONFIG, _HEURISTIC, _PLAN = 1, 2, 3, 4, 5
_GRAPH, _PACK, _TENSOR = 15, 16, 17
# types of attributes
_HANDLE_TYPE, _DATA_TYPE, _LONG, _FLOAT, _DOUBLE, _ADDRESS = 0, 1, 3, 4, 5, 6
_MODE_TYPE, _HEURISTIC_TYPE, _NOTE_TYPE, _DESCRIPTOR = 7, 8, 11, 15
# names of attributes
_COMPUTE, _MODE, _DILATION, _STRIDE, _AFTER, _BEFORE, _AXES = range(100, 107)
_HEURISTIC_MODE, _HEURISTIC_GRAPH, _HEURISTIC_RESULTS = 200, 201, 202
_CONFIG_ENGINE = 300
_PLAN_HANDLE, _PLAN_CONFIG, _PLAN_WORKSPACE = 400, 401, 402
_GRAPH_HANDLE, _GRAPH_OPERATIONS = 800, 801
_TENSOR_ALIGNMENT, _TENSOR_TYPE, _TENSOR_SHAPE, _TENSOR_STRIDES = 900, 901, 902, 903
_TENSOR_NUMBER = 906
_PACK_NUMBERS, _PACK_ADDRESSES, _PACK_WORKSPACE = 1000, 1001, 1003
_ENGINE_NOTES = 1303

_CROSS_CORRELATION = 1
_HEURISTICS = (3, 2)  # the quick one, then the fallback engines
_NOTES = 10  # how many notes there are
_TENSOR_CORE, _DOWN_CONVERT, _NARROW_SUMS, _FFT, _NOT_DETERMINISTIC = range(5)
_WINOGRAD_13 = 8  # tiles of 13 by 13, whose coefficients cost three of seven digits
_STRICT_NAN = 9


class _Operation(NamedTuple):
    """The descriptor of an operation, and the names of its attributes."""

    kind: int
    alpha: int
    beta: int
    convolution: int
    x: int
    w: int
    y: int


_OPERATIONS = {
    "forward": _Operation(10, 700, 701, 702, x=704, w=703, y=705),
    "input": _Operation(12, 706, 707, 708, x=710, w=709, y=711),
    "weight": _Operation(11, 712, 713, 714, x=716, w=715, y=717),
}


class ConvProblem(NamedTuple):
    """What one call does: "forward" makes y of x and w, "input" x of y and w, "weight" w of x and
    y. Shapes are (batch, channels, spatial...); the number of groups is x's channels over w's."""

    kind: str
    dtype: DType
    x: Shape
    w: Shape
    y: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    channels_last: bool = False  # the layout of all three
    tf32: bool = False  # float32 may be rounded to 10 bits before it is multiplied

    def __str__(self) -> str:
        x, w, y = (" x ".join(map(str, shape)) for shape in (self.x, self.w, self.y))
        order = ", channels last" if self.channels_last else ""
        return f"convolution ({self.kind}) of {x} with {w} to {y}, {self.dtype}{order}"

    @property
    def op(self) -> str:
        """The name of the op."""
        stem = "conv2d" if len(self.stride) == 2 else "convolve3d"
        return stem if self.kind == "forward" else f"{stem}_{self.kind}"

    def strides(self, shape: Shape) -> Shape:
        return channels_last_strides(shape) if self.channels_last else row_major(shape)

    @property
    def max_workspace(self) -> int:
        """Bytes of workspace that an engine may use."""
        elements = sum(size_of(shape) for shape in (self.x, self.w, self.y))
        return MAX_WORKSPACE + COPIES * elements * self.dtype.itemsize

    @property
    def has_products(self) -> bool:
        """Whether the definition, one product for each image, is faster than the engines that
        remain when nondeterministic ones are refused: the gradient of an ungrouped 2-D weight. The
        other engines took up to ten times as long."""
        return self.kind == "weight" and len(self.stride) == 2 and self.x[1] == self.w[1]

    def refuses(self, notes: set[int]) -> bool:
        """Whether an engine with these notes lacks our guarantees."""
        refused = {_DOWN_CONVERT, _NARROW_SUMS, _NOT_DETERMINISTIC, _WINOGRAD_13}
        if self.dtype is dtypes.float32 and not self.tf32:
            refused.add(_TENSOR_CORE)  # they round to tf32
        return bool(notes & refused) or self.may_be_winograd(notes)

    def may_be_winograd(self, notes: set[int]) -> bool:
        """Whether an engine with these notes may be Winograd's for weights of 5 by 5. It has none
        of them (cuDNN 9.19), and is off by 5e-4 to 9e-4 of the gradient's norm; by 3 by 3 it is as
        good as others. Notes that others have tell that it is not this one."""
        known = notes & {_TENSOR_CORE, _FFT, _STRICT_NAN}
        return (
            self.kind == "weight"
            and self.dtype is dtypes.float32
            and tuple(self.w[2:]) == (5, 5)
            and not known
        )


def channels_last_strides(shape: Shape) -> Shape:
    """The strides of (batch, channels, spatial...) in channels-last memory.

    >>> channels_last_strides((2, 3, 4, 5))
    (60, 1, 15, 3)
    """
    batch, channels, *places = shape
    steps = row_major((batch, *places, channels))
    return (steps[0], steps[-1], *steps[1:-1])


def is_channels_last(shape: Shape, strides: Shape) -> bool:
    """Whether an array is channels-last, and not contiguous as well."""
    permuted = ((facts[0], *facts[2:], facts[1]) for facts in (shape, strides))
    return is_row_major(*permuted) and not is_row_major(shape, strides)


@cache
def load() -> Any:
    """The library, or None where there is none."""
    for path in candidates("libcudnn", MAJORS):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudnnCreate": (ctypes.c_void_p,),
    "cudnnDestroy": (ctypes.c_void_p,),
    "cudnnSetStream": (ctypes.c_void_p, ctypes.c_void_p),
    "cudnnGetErrorString": (ctypes.c_int,),
    "cudnnGetLastErrorString": (ctypes.c_void_p, ctypes.c_size_t),
    "cudnnBackendCreateDescriptor": (ctypes.c_int, ctypes.c_void_p),
    "cudnnBackendDestroyDescriptor": (ctypes.c_void_p,),
    "cudnnBackendFinalize": (ctypes.c_void_p,),
    "cudnnBackendSetAttribute": (
        *(ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p),
    ),
    "cudnnBackendGetAttribute": (
        *(ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
        *(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p),
    ),
    "cudnnBackendExecute": (ctypes.c_void_p,) * 3,
}


class ConvPlan:
    """A problem with the engine that solves it; calling it with addresses enqueues it."""

    __slots__ = (
        "__name__", "_dnn", "_packs", "descriptor", "name", "problem", "workspace"
    )  # fmt: skip

    def __init__(self, dnn: Cudnn, problem: ConvProblem, descriptor: int, workspace: int) -> None:
        self.problem = problem
        self.descriptor = descriptor
        self.workspace = workspace  # bytes it needs
        self.name = problem.op  # among launches; in lists of what is compiled, the whole problem
        self.__name__ = str(problem)
        self._dnn = dnn
        self._packs: dict[tuple[int, int, int, int], int] = {}  # by addresses

    def __call__(self, x: int, w: int, y: int, workspace: int) -> None:
        """Enqueue the convolution; two of the tensors are read, the third is written.

        `workspace` has at least `self.workspace` bytes, and may be reused by later launches.
        """
        given = (x, w, y, workspace)
        pack = self._packs.get(given) or self._pack_for(given)
        self._dnn.execute(self.descriptor, pack, self.problem)

    def _pack_for(self, given: tuple[int, int, int, int]) -> int:
        """A descriptor of the addresses, which are mostly those of an earlier call."""
        *tensors, space = given
        if len(self._packs) >= PACKS:
            self._dnn.drop(self._packs.pop(next(iter(self._packs))))
        made = self._packs[given] = self._dnn.describe(
            _PACK,
            "addresses",
            (_PACK_NUMBERS, _LONG, _longs(1, 2, 3)),
            (_PACK_ADDRESSES, _ADDRESS, _addresses(*tensors)),
            (_PACK_WORKSPACE, _ADDRESS, _addresses(space)),
        )
        return made


class _Solution(NamedTuple):
    """Two descriptors, and the bytes of workspace that are needed."""

    plan: int
    config: int
    workspace: int


class Cudnn:
    """cuDNN on the device that is current when it is made; plans are cached by problem."""

    def __init__(self, library: Any, stream: int) -> None:
        self.library = library
        library.cudnnGetVersion.restype = ctypes.c_size_t
        library.cudnnGetErrorString.restype = ctypes.c_char_p
        for name, types in _SIGNATURES.items():
            getattr(library, name).argtypes = types
        self.version: int = library.cudnnGetVersion()
        self.plans: dict[ConvProblem, ConvPlan | None] = {}
        handle = ctypes.c_void_p()
        self._check_status(library.cudnnCreate(ctypes.addressof(handle)), "cudnnCreate")
        self._handle = handle.value or 0
        self._check_status(library.cudnnSetStream(self._handle, stream), "cudnnSetStream")
        self._execute = library.cudnnBackendExecute
        self._finalize = library.cudnnBackendFinalize

    def plan(self, problem: ConvProblem) -> ConvPlan | None:
        """How to solve `problem`: the best engine with our guarantees, or None if none has them."""
        if problem not in self.plans:
            self.plans[problem] = self._new_plan(problem)
        return self.plans[problem]

    def execute(self, plan: int, pack: int, problem: ConvProblem) -> None:
        status = self._execute(self._handle, plan, pack)
        if status:
            self._check_status(status, str(problem))

    def describe(self, kind: int, what: str, *attributes: tuple[int, int, Any]) -> int:
        """A descriptor with these attributes: names, types, and arrays of values."""
        made = self._new_descriptor(kind, what, *attributes)
        status = self._finalize(made)
        if status:
            self.drop(made)
            self._check_status(status, what)
        return made

    def drop(self, descriptor: int) -> None:
        self.library.cudnnBackendDestroyDescriptor(descriptor)

    # --- internals -------------------------------------------------------------------------------

    def _new_descriptor(self, kind: int, what: str, *attributes: tuple[int, int, Any]) -> int:
        """A descriptor that is not yet finalised."""
        found = ctypes.c_void_p()
        create = self.library.cudnnBackendCreateDescriptor
        self._check_status(create(kind, ctypes.addressof(found)), what)
        made = found.value or 0
        for name, type_, values in attributes:
            put = self.library.cudnnBackendSetAttribute
            status = put(made, name, type_, len(values), ctypes.addressof(values))
            if status:
                self.drop(made)
                self._check_status(status, f"{what}: attribute {name}")
        return made

    def _get(self, descriptor: int, name: int, type_: int, values: Any) -> int:
        """Fill `values`; returns how many there are."""
        count = ctypes.c_int64()
        get = self.library.cudnnBackendGetAttribute
        capacity = 0 if values is None else len(values)
        address = None if values is None else ctypes.addressof(values)
        status = get(descriptor, name, type_, capacity, ctypes.addressof(count), address)
        self._check_status(status, f"attribute {name}")
        return count.value

    def _new_plan(self, problem: ConvProblem) -> ConvPlan | None:
        """The first engine within the workspace limit, or the one that needs the least."""
        held: list[int] = []
        best: _Solution | None = None
        try:
            for found in self._solutions(problem, held):
                loser = best
                if best is None or found.workspace < best.workspace:
                    best = found
                else:
                    loser = found
                if loser is not None:
                    self.drop(loser.plan)
                if best.workspace <= problem.max_workspace:
                    break
        finally:
            for descriptor in reversed(held):
                if best is None or descriptor != best.config:  # the plan may refer to it
                    self.drop(descriptor)
        return None if best is None else ConvPlan(self, problem, best.plan, best.workspace)

    def _solutions(self, problem: ConvProblem, held: list[int]) -> Iterator[_Solution]:
        """Solutions, the best first. `held` collects the descriptors they use."""
        graph = self._graph(problem, held)
        for mode in _HEURISTICS[:1] if problem.has_products else _HEURISTICS:
            for config in self._configs(graph, mode, held):
                notes = self._notes(config)
                if problem.has_products and (_FFT in notes or problem.may_be_winograd(notes)):
                    return
                if problem.refuses(notes):
                    continue
                plan = self._new_descriptor(
                    _PLAN,
                    str(problem),
                    (_PLAN_HANDLE, _HANDLE_TYPE, _addresses(self._handle)),
                    (_PLAN_CONFIG, _DESCRIPTOR, _addresses(config)),
                )
                if self._finalize(plan):  # not supported on this GPU or for these sizes
                    self.drop(plan)
                    continue
                size = _longs(0)
                self._get(plan, _PLAN_WORKSPACE, _LONG, size)
                yield _Solution(plan, config, size[0])

    def _graph(self, problem: ConvProblem, held: list[int]) -> int:
        """The problem as a graph of one operation."""
        p, what = problem, str(problem)
        tensors = [self._tensor(p, i, shape) for i, shape in enumerate((p.x, p.w, p.y), 1)]
        held += tensors
        wide = p.dtype is dtypes.float64
        held.append(
            self.describe(
                _CONVOLUTION,
                what,
                (_COMPUTE, _DATA_TYPE, _ints(DTYPES[dtypes.float64 if wide else dtypes.float32])),
                (_MODE, _MODE_TYPE, _ints(_CROSS_CORRELATION)),
                (_AXES, _LONG, _longs(len(p.stride))),
                (_DILATION, _LONG, _longs(*p.dilation)),
                (_STRIDE, _LONG, _longs(*p.stride)),
                (_BEFORE, _LONG, _longs(*p.padding)),
                (_AFTER, _LONG, _longs(*p.padding)),
            )
        )
        operation = _OPERATIONS[p.kind]
        x, w, y = tensors
        number = (_DOUBLE, ctypes.c_double) if wide else (_FLOAT, ctypes.c_float)
        held.append(
            self.describe(
                operation.kind,
                what,
                (operation.convolution, _DESCRIPTOR, _addresses(held[-1])),
                (operation.x, _DESCRIPTOR, _addresses(x)),
                (operation.w, _DESCRIPTOR, _addresses(w)),
                (operation.y, _DESCRIPTOR, _addresses(y)),
                (operation.alpha, number[0], (number[1] * 1)(1.0)),
                (operation.beta, number[0], (number[1] * 1)(0.0)),
            )
        )
        held.append(
            self.describe(
                _GRAPH,
                what,
                (_GRAPH_HANDLE, _HANDLE_TYPE, _addresses(self._handle)),
                (_GRAPH_OPERATIONS, _DESCRIPTOR, _addresses(held[-1])),
            )
        )
        return held[-1]

    def _tensor(self, problem: ConvProblem, number: int, shape: Shape) -> int:
        return self.describe(
            _TENSOR,
            f"{problem}: tensor {shape}",
            (_TENSOR_TYPE, _DATA_TYPE, _ints(DTYPES[problem.dtype])),
            (_TENSOR_SHAPE, _LONG, _longs(*shape)),
            (_TENSOR_STRIDES, _LONG, _longs(*problem.strides(shape))),
            (_TENSOR_NUMBER, _LONG, _longs(number)),
            (_TENSOR_ALIGNMENT, _LONG, _longs(ALIGNMENT)),
        )

    def _configs(self, graph: int, mode: int, held: list[int]) -> list[int]:
        """The engine configurations of a heuristic for a graph, the best first."""
        asked = self._new_descriptor(
            _HEURISTIC,
            "a heuristic",
            (_HEURISTIC_GRAPH, _DESCRIPTOR, _addresses(graph)),
            (_HEURISTIC_MODE, _HEURISTIC_TYPE, _ints(mode)),
        )
        held.append(asked)
        if self._finalize(asked):  # it has none
            return []
        count = self._get(asked, _HEURISTIC_RESULTS, _DESCRIPTOR, None)
        configs = [self._new_descriptor(_CONFIG, "an engine") for _ in range(count)]
        held += configs
        if not configs:
            return []
        found = self._get(asked, _HEURISTIC_RESULTS, _DESCRIPTOR, _addresses(*configs))
        return configs[:found]

    def _notes(self, config: int) -> set[int]:
        """The numerical notes of a configuration's engine."""
        engine = self._new_descriptor(_ENGINE, "an engine")
        notes = _ints(*[-1] * _NOTES)
        try:
            self._get(config, _CONFIG_ENGINE, _DESCRIPTOR, _addresses(engine))
            count = self._get(engine, _ENGINE_NOTES, _NOTE_TYPE, notes)
        finally:
            self.drop(engine)
        return set(notes[:count])

    def _check_status(self, status: int, what: str) -> None:
        """Raise for a status other than success: of the problem, or of the device."""
        if not status:
            return
        name = (self.library.cudnnGetErrorString(status) or b"").decode()
        buffer = ctypes.create_string_buffer(1024)
        self.library.cudnnGetLastErrorString(ctypes.addressof(buffer), len(buffer))
        words = buffer.value.decode(errors="replace").strip()
        more = f": {words}" if words else ""
        kind = CompileError if status // 1000 in (2, 3) else DeviceError
        raise kind(f"{what}: cuDNN {self.version} answers {name or status}{more}")


def _longs(*values: int) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _ints(*values: int) -> Any:
    return (ctypes.c_int32 * len(values))(*values)


def _addresses(*values: int) -> Any:
    return (ctypes.c_void_p * len(values))(*values)
