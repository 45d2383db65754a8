"""Factorisations and solutions by cuSOLVER and cuBLAS, called directly: as CuPy calls them they
cannot be captured into a graph, and on small matrices the host would take most of the time.

    lib = Cusolver(load(), stream, workspace)       # one for each device, made while it is current
    potrf = lib.routine("potrf", dtypes.float32, UPPER, n, n, lib.elements("potrf", ...))
    potrf(a, work, info)                            # addresses; waits for nothing, may be captured

A routine is a library function with all its arguments except addresses. Matrices are column-major,
as LAPACK's. A routine reports a bad matrix in `info` on the device, not to the host; an error here
means that the call itself was wrong.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.driver.nvrtc import candidates
from everygrad.dtypes import DType
from everygrad.errors import DeviceError

WORKSPACE = 32 << 20  # bytes for cuBLAS to work in, as NVIDIA advises for Hopper

LETTERS = {dtypes.float32: "S", dtypes.float64: "D", dtypes.complex64: "C", dtypes.complex128: "Z"}

# cuBLAS's constants
LOWER, UPPER = 0, 1
PLAIN, TRANSPOSED = 0, 1
LEFT, RIGHT = 0, 1
NOT_UNIT, UNIT = 0, 1

# by routine, the arguments behind the handle. i: a number, a: an address on the device, 1: the
# number one of the host, h: a word of the host that cuBLAS writes to
_SOLVER: dict[str, str] = {
    "potrf": "iiaiaia",
    "potrfBatched": "iiaiai",
    "getrf": "iiaiaaa",
    "getrs": "iiiaiaaia",
    "geqrf": "iiaiaaia",
    "orgqr": "iiiaiaaia",
}
_BLAS: dict[str, str] = {
    "getrfBatched": "iaiaai",
    "getrsBatched": "iiiaiaaihi",
    "matinvBatched": "iaiaiai",
    "trsm": "iiiiii1aiai",
    "trsmBatched": "iiiiii1aiaii",
}
_SIZES: dict[str, str] = {"potrf": "iiai", "getrf": "iiai", "geqrf": "iiai", "orgqr": "iiiaia"}
_TYPES = {"i": ctypes.c_int, "a": ctypes.c_void_p, "1": ctypes.c_void_p, "h": ctypes.c_void_p}
_STATUS = {
    "cuSOLVER": {
        1: "NOT_INITIALIZED",
        2: "ALLOC_FAILED",
        3: "INVALID_VALUE",
        4: "ARCH_MISMATCH",
        6: "EXECUTION_FAILED",
        7: "INTERNAL_ERROR",
        9: "NOT_SUPPORTED",
    },
    "cuBLAS": {
        1: "NOT_INITIALIZED",
        3: "ALLOC_FAILED",
        7: "INVALID_VALUE",
        8: "ARCH_MISMATCH",
        11: "MAPPING_ERROR",
        13: "EXECUTION_FAILED",
        14: "INTERNAL_ERROR",
        15: "NOT_SUPPORTED",
    },
}


class Libraries(NamedTuple):
    """Both libraries, opened."""

    cusolver: Any
    cublas: Any


@cache
def load() -> Libraries | None:
    """The libraries, or None where one is missing. CUDA 13 has cuSOLVER 12, CUDA 12 has 11."""
    for cuda, solver in ((13, 12), (12, 11)):
        found = [_opened("libcusolver", solver), _opened("libcublas", cuda)]
        if None not in found:
            return Libraries(*found)
    return None


def _opened(stem: str, major: int) -> Any:
    for path in candidates(stem, (major,)):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


class Routine:
    """A function with its integer arguments; calling it with addresses enqueues it on the stream.

    Addresses beyond its parameters are of memory that it reaches through a list of addresses: they
    are passed so that the memory planner knows how long it is used.
    """

    __slots__ = ("__name__", "_arguments", "_function", "_library", "_places", "name")

    def __init__(
        self, library: str, name: str, title: str, function: Any, arguments: list[Any]
    ) -> None:
        self.name = name  # among launches
        self.__name__ = title  # in lists of what is compiled
        self._library = library
        self._function = function
        self._arguments = arguments  # None: an address
        self._places = [i for i, a in enumerate(arguments) if a is None]

    def __call__(self, *addresses: int) -> None:
        given = self._arguments.copy()
        for place, address in zip(self._places, addresses, strict=False):
            given[place] = address
        status = self._function(*given)
        if status:
            raise _refusal(self._library, self.__name__, status)


def _refusal(library: str, what: str, status: int) -> DeviceError:
    name = _STATUS[library].get(status, str(status))
    return DeviceError(f"{what}: {library} answers {name}; please report it")


class Cusolver:
    """Both libraries on the device that is current when it is made, each with its handle on one
    stream. `workspace` is the address of WORKSPACE bytes that stay."""

    def __init__(self, libraries: Libraries, stream: int, workspace: int) -> None:
        self._workspace = workspace
        self._routines: dict[Any, Routine] = {}
        self._elements: dict[Any, int] = {}
        self._word = ctypes.c_int()  # where cuBLAS writes which argument was wrong
        self._ones = {dtype: _one(dtype) for dtype in LETTERS}
        solver, blas = libraries
        self._libraries = libraries
        for name in ("cusolverDnSetStream", "cublasSetStream_v2"):
            getattr(solver if "solver" in name else blas, name).argtypes = [ctypes.c_void_p] * 2
        blas.cublasSetWorkspace_v2.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._solver = self._handle("cuSOLVER", solver.cusolverDnCreate)
        self._blas = self._handle("cuBLAS", blas.cublasCreate_v2)
        self._check_status(
            "cuSOLVER", "its stream", solver.cusolverDnSetStream(self._solver, stream)
        )
        self._check_status("cuBLAS", "its stream", blas.cublasSetStream_v2(self._blas, stream))
        # after the stream: setting that resets the workspace
        self._check_status(
            "cuBLAS",
            "its workspace",
            blas.cublasSetWorkspace_v2(self._blas, workspace, WORKSPACE),
        )

    def routine(self, name: str, dtype: DType, *numbers: int) -> Routine:
        """A function of either library, with its arguments except addresses."""
        key = (name, dtype, numbers)
        found = self._routines.get(key)
        if found is None:
            found = self._routines[key] = self._new_routine(name, dtype, numbers)
        return found

    def elements(self, name: str, dtype: DType, *numbers: int) -> int:
        """How many elements of workspace a routine needs for matrices of such sizes."""
        key = (name, dtype, numbers)
        found = self._elements.get(key)
        if found is None:
            found = self._elements[key] = self._ask(name, dtype, numbers)
        return found

    # --- internals -------------------------------------------------------------------------------

    def _handle(self, library: str, create: Any) -> int:
        made = ctypes.c_void_p()
        self._check_status(library, "a handle", create(ctypes.byref(made)))
        return made.value or 0

    def _check_status(self, library: str, what: str, status: int) -> None:
        if status:
            raise _refusal(library, f"linear algebra on cuda: {what}", status)

    def _function(self, name: str, dtype: DType, ending: str, letters: str) -> Any:
        """The function of this dtype; `letters` are its arguments after the handle."""
        stem = "ungqr" if name == "orgqr" and dtype.is_complex else name
        if name in _SOLVER:
            function = getattr(
                self._libraries.cusolver, f"cusolverDn{LETTERS[dtype]}{stem}{ending}"
            )
        else:
            version = "_v2" if name == "trsm" else ""
            function = getattr(self._libraries.cublas, f"cublas{LETTERS[dtype]}{stem}{version}")
        function.argtypes = [ctypes.c_void_p, *(_TYPES[letter] for letter in letters)]
        return function

    def _new_routine(self, name: str, dtype: DType, numbers: tuple[int, ...]) -> Routine:
        is_solver = name in _SOLVER
        letters = _SOLVER[name] if is_solver else _BLAS[name]
        function = self._function(name, dtype, "", letters)
        rest = iter(numbers)
        fixed = {"1": ctypes.addressof(self._ones[dtype]), "h": ctypes.addressof(self._word)}
        given = [next(rest) if letter == "i" else fixed.get(letter) for letter in letters]
        title = f"{name} {' '.join(map(str, numbers))}, {dtype}"
        library, handle = ("cuSOLVER", self._solver) if is_solver else ("cuBLAS", self._blas)
        return Routine(library, name, title, function, [handle, *given])

    def _ask(self, name: str, dtype: DType, numbers: tuple[int, ...]) -> int:
        """Query the workspace with a valid address, which is not read."""
        letters = _SIZES[name]
        function = self._function(name, dtype, "_bufferSize", letters + "a")
        left, size = iter(numbers), ctypes.c_int()
        given = [next(left) if letter == "i" else self._workspace for letter in letters]
        status = function(self._solver, *given, ctypes.addressof(size))
        self._check_status("cuSOLVER", f"workspace for {name} of {numbers}, {dtype}", status)
        return size.value


def _one(dtype: DType) -> Any:
    """1 in the host's memory."""
    part = ctypes.c_double if dtype in (dtypes.float64, dtypes.complex128) else ctypes.c_float
    return (part * 2)(1, 0) if dtype.is_complex else (part * 1)(1)
