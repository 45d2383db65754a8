"""Straight-line LLVM IR as text, and the one JIT engine that turns it into machine code.

`Emitter` names values and knows their types; it knows no ops or loops. It writes text rather than
using llvmlite's builder: text is faster to make, and the builder cannot express the loop metadata
that the vectoriser needs (distinct, self-referring nodes).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import itertools
import math
import os
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi

from everygrad.backends import disk_cache, thread_pool
from everygrad.backends.cpu.llvm import soft_half
from everygrad.codegen import report
from everygrad.errors import ArgumentError, CompileError

_MODULES_PER_ENGINE = (
    8  # modules loaded at once share an engine, which lives as long as any of them
)
_OVERHEAD = 1 << 15  # bytes of an engine besides its code
_FORMAT = 1  # of cached object code: increment it when the pipeline below changes


class Value(NamedTuple):
    """An SSA value or a literal: its LLVM type and how it is written."""

    type: str
    name: str

    @property
    def is_float(self) -> bool:
        return self.type in ("half", "float", "double")


_FLOAT_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


def suffix(type_: str) -> str:
    """How an overloaded intrinsic's name spells a type: llvm.floor.f32, llvm.abs.i16."""
    return _FLOAT_SUFFIX.get(type_, type_)


def literal(type_: str, value: float | int | bool) -> Value:
    """A constant; floats are rounded to `type_` and written as bits, so nothing is lost."""
    if type_ not in _FLOAT_SUFFIX:
        return Value(type_, str(int(value)))
    if type_ == "half":
        return Value(type_, f"0xH{struct.unpack('<H', _half_bytes(float(value)))[0]:04X}")
    number = float(value)
    if type_ == "float":  # written as the double that equals it
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            number = math.copysign(math.inf, number)
    return Value(type_, f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}")


def _half_bytes(value: float) -> bytes:
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, value))


class Emitter:
    """Collects instructions; every method adds one and returns its value."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.exact = False  # True: no contraction, so that every instruction rounds as written
        self._count = 0

    def emit(self, type_: str, text: str) -> Value:
        """`text` as an instruction whose result has type `type_`."""
        name = f"%v{self._count}"
        self._count += 1
        self.lines.append(f"  {name} = {text}")
        return Value(type_, name)

    def op(self, name: str, a: Value, b: Value) -> Value:
        """A binary instruction: fadd, mul, and, shl..."""
        return self.emit(a.type, f"{name} {a.type} {a.name}, {b.name}")

    def neg(self, a: Value) -> Value:
        if a.is_float:
            return self.emit(a.type, f"fneg {a.type} {a.name}")
        return self.op("sub", literal(a.type, 0), a)

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        """`fcmp` or `icmp`, by the operands' type."""
        kind = "fcmp" if a.is_float else "icmp"
        return self.emit("i1", f"{kind} {predicate} {a.type} {a.name}, {b.name}")

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        chosen = f"{yes.type} {yes.name}, {no.type} {no.name}"
        return self.emit(yes.type, f"select i1 {condition.name}, {chosen}")

    def cast(self, name: str, a: Value, type_: str) -> Value:
        """A conversion instruction: fpext, trunc, bitcast, sitofp..."""
        if a.type == type_:
            return a
        return self.emit(type_, f"{name} {a.type} {a.name} to {type_}")

    def call(self, function: str, type_: str, *args: Value, attributes: str = "") -> Value:
        """A call of a function or intrinsic, declared on first use."""
        types = ", ".join(a.type for a in args)
        self.declarations.add(f"declare {type_} @{function}({types}) {attributes}".rstrip())
        given = ", ".join(f"{a.type} {a.name}" for a in args)
        return self.emit(type_, f"call {type_} @{function}({given})")

    def intrinsic(self, name: str, *args: Value) -> Value:
        """An LLVM intrinsic overloaded on, and returning, the type of its first argument."""
        return self.call(f"llvm.{name}.{suffix(args[0].type)}", args[0].type, *args)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)


Source = tuple[str, bool]  # LLVM IR, and whether LLVM is to vectorise its loops


class _Request(NamedTuple):
    """A module to compile: its key, its text, and the functions wanted of it."""

    key: str
    text: str
    names: tuple[str, ...]
    vectorise: bool

    def symbol(self, name: str) -> str:
        """The symbol of a function in the object: modules of different texts share no symbol."""
        return f"{name}_{self.key[:20]}"

    @property
    def renamed(self) -> str:
        """The text with its functions' names made unique."""
        text = self.text
        for name in self.names:
            text = text.replace(f"@{name}(", f"@{self.symbol(name)}(")
        return text


class _Unlocked:
    """The two slow functions of llvmlite's library, called without the global lock of llvmlite:
    LLVM can compile modules of different contexts on several threads at once."""

    def __init__(self) -> None:
        library = ctypes.CDLL(ffi.lib._name)
        self._optimise = self._function(library, "LLVMPY_RunNewModulePassManager")
        self._emit = self._function(library, "LLVMPY_TargetMachineEmitToMemory")
        # llvmlite sets the argument types on first use, which would be a race between threads
        self._dispose = library.LLVMPY_DisposeNewModulePassManger
        self._dispose.argtypes, self._dispose.restype = [self._optimise.argtypes[0]], None

    def _function(self, library: ctypes.CDLL, name: str) -> Any:
        function, known = getattr(library, name), getattr(ffi.lib, name)
        function.argtypes, function.restype = known.argtypes, known.restype
        return function

    def run(self, passes: Any, module: Any, builder: Any) -> None:
        """Run a pass manager on a module."""
        self._optimise(passes, module, builder)

    def dispose(self, passes: Any) -> None:
        self._dispose(passes)

    def object_code(self, machine: Any, module: Any) -> bytes:
        """The object file of a module."""
        with ffi.OutputString() as error:
            buffer = self._emit(machine, module, 1, error)
            if not buffer:
                raise RuntimeError(str(error))
        try:
            start, size = (
                ffi.lib.LLVMPY_GetBufferStart(buffer),
                ffi.lib.LLVMPY_GetBufferSize(buffer),
            )
            return ctypes.string_at(start, size)
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


class MachineCode:
    """Machine code in the process; it lives as long as somebody holds it, as an `Address` does.

    The thread that loads code next frees its memory: the last reference may go away anywhere,
    inside another call of LLVM, or while locks are held.
    """

    __slots__ = ("__weakref__", "_dropped", "_number", "nbytes")

    def __init__(self, number: int, nbytes: int, dropped: deque[int]) -> None:
        self._number = number  # of the MCJIT engine that owns the memory
        self._dropped = dropped
        self.nbytes = nbytes

    def __del__(self) -> None:
        self._dropped.append(self._number)  # atomic


class _Module:
    """A loaded module: the addresses of its functions."""

    __slots__ = ("__weakref__", "code", "functions")

    def __init__(self, code: MachineCode, functions: dict[str, int]) -> None:
        self.code = code
        self.functions = functions


class Address(int):
    """The address of a function. Callers hold this, not a plain number, to keep the code alive."""

    module: _Module

    @classmethod
    def of(cls, module: _Module, name: str) -> Address:
        made = cls(module.functions[name])
        made.module = module
        return made

    @property
    def nbytes(self) -> int:
        """The size of the code that it keeps alive."""
        return self.module.code.nbytes


class Engine:
    """LLVM for this processor. Compiled code lives as long as somebody holds an address in it.

    Equal texts are compiled once while their code lives, and their object code is cached on disk
    (`disk_cache`), so a text must not contain addresses.
    """

    def __init__(self) -> None:
        if "numba" not in sys.modules:  # the option is global to the process
            # loop strength reduction takes a quarter of the compile time, and our addresses are
            # simple already: kernels run as fast without it
            llvm.set_option("everygrad", "-disable-lsr")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        libm = ctypes.util.find_library("m")
        if libm is not None:  # Python may not be linked with it
            llvm.load_library_permanently(libm)
        self.cpu: str = llvm.get_host_cpu_name()
        found = llvm.get_host_cpu_features()
        self.features: dict[str, bool] = dict(found)
        self._flags: str = found.flatten()
        self._triple: str = llvm.get_process_triple()
        self._unlocked = _Unlocked()
        self._machines = [self._new_machine()]  # idle ones: a machine serves one thread at a time
        self._layout = str(self._machines[0].target_data)
        self._environment = self._environment_hash()
        self._modules: weakref.WeakValueDictionary[str, _Module] = weakref.WeakValueDictionary()
        self._pinned: list[_Module] = []  # modules that live as long as the process
        # MCJIT engines, by number. If `MachineCode` held its engine, the collector would close it,
        # since it finalizes a cycle's objects one by one, while another thread closes it as dropped
        self._linked: dict[int, Any] = {}
        self._numbers = itertools.count()
        self._dropped: deque[int] = deque()  # numbers of engines whose code nobody holds any more
        self._lock = threading.Lock()
        if soft_half.needed(self.features):
            for name, address in self.functions(soft_half.SOURCE, soft_half.NAMES).items():
                llvm.add_symbol(name, address)

    def _new_machine(self) -> Any:
        target = llvm.Target.from_triple(self._triple)
        return target.create_target_machine(cpu=self.cpu, features=self._flags, opt=3, jit=True)

    def _environment_hash(self) -> Any:
        """A hash of what object code depends on besides its source."""
        version = ".".join(str(n) for n in llvm.llvm_version_info)
        facts = (_FORMAT, llvmlite.__version__, version, self._triple, self.cpu, self._flags)
        return hashlib.sha256("\n".join(map(str, facts)).encode())

    @property
    def attributes(self) -> str:
        """Function attributes of every kernel: LLVM halves AVX-512 vectors unless told not to."""
        width = ' "prefer-vector-width"="512"' if self.features.get("avx512f") else ""
        return "nounwind" + width

    # --- one module ------------------------------------------------------------------------------

    def _passes(self, builder: Any, vectorise: bool) -> Any:
        if vectorise:
            return builder.getModulePassManager()
        # Vectors are explicit, so it is enough to fold addresses and constants. Matrix products,
        # convolutions and attention run as fast as with O3, which takes 3 times as long; nine
        # tenths of the remaining time are code generation.
        passes = llvm.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        return passes

    def _optimised(self, text: str, machine: Any, vectorise: bool) -> Any:
        """`text` parsed, verified, and run through LLVM's O2 pipeline or a short one."""
        module = llvm.parse_assembly(text, llvm.create_context())
        module.triple = self._triple
        module.data_layout = self._layout
        module.verify()
        # Vectorised and interleaved loops need no more unrolling: without it, without SLP and with
        # O2 for O3 the same kernels run as fast and compile in six tenths of the time.
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = True
        options.loop_interleaving = True
        options.loop_unrolling = False
        options.slp_vectorization = False
        # A builder's callbacks are never freed by llvmlite (1.4 KB, with the disk cache off). No
        # builder can serve twice: each run adds callbacks that point into its own stack frame.
        builder = llvm.create_pass_builder(machine, options)
        passes = self._passes(builder, vectorise)
        try:
            self._unlocked.run(passes, module, builder)
        finally:
            # llvmlite's class has a close() that does nothing: 90 KB for each module
            self._unlocked.dispose(passes)
            passes.detach()
        return module

    @contextmanager
    def _machine(self) -> Iterator[Any]:
        """An idle target machine, or a new one."""
        try:
            machine = self._machines.pop()  # atomic, as is append
        except IndexError:
            machine = self._new_machine()
        yield machine
        self._machines.append(machine)

    def assembly(self, text: str, vectorise: bool = True) -> str:
        """The machine code of `text`, for reading."""
        with self._machine() as machine:
            return str(machine.emit_assembly(self._optimised(text, machine, vectorise)))

    def _object_code(self, request: _Request) -> bytes:
        """Object code from the disk cache, or compiled now and cached."""
        found = disk_cache.get(request.key)
        if found is not None and self._is_valid_object(found, request):
            return found
        with self._machine() as machine:
            try:
                module = self._optimised(request.renamed, machine, request.vectorise)
            except RuntimeError as error:
                raise CompileError(
                    f"cpu: a kernel does not compile:\n{str(error).strip()[:4000]}"
                    f"{report.origin(request.text)}"
                ) from None
            made = self._unlocked.object_code(machine, module)
        disk_cache.put(request.key, made)
        return made

    def _is_valid_object(self, code: bytes, request: _Request) -> bool:
        """Whether bytes from the disk look like object code of this machine with our functions: the
        loader does not check them, and would crash on other bytes."""
        magic = {"linux": b"\x7fELF", "darwin": b"\xcf\xfa\xed\xfe"}.get(sys.platform, b"")
        names = all(request.symbol(name).encode() in code for name in request.names)
        return code.startswith(magic) and len(code) > 64 and names

    # --- many ------------------------------------------------------------------------------------

    def _request(self, text: str, names: Sequence[str], vectorise: bool) -> _Request:
        hashed = self._environment.copy()
        hashed.update(f"{vectorise} {' '.join(names)}\n{text}".encode())
        return _Request(hashed.hexdigest(), text, tuple(names), vectorise)

    def _load(self, objects: dict[_Request, bytes]) -> dict[str, _Module]:
        """Links object code into the process, unless another thread did so meanwhile."""
        found: dict[str, _Module] = {}
        with self._lock:
            self._free_dropped()
            for request in objects:
                module = self._modules.get(request.key)
                if module is not None:
                    found[request.key] = module
            fresh = [r for r in objects if r.key not in found]
            for i in range(0, len(fresh), _MODULES_PER_ENGINE):
                for request, module in self._link(fresh[i : i + _MODULES_PER_ENGINE], objects):
                    found[request.key] = self._modules[request.key] = module
        return found

    def _link(
        self, requests: Sequence[_Request], objects: dict[_Request, bytes]
    ) -> list[tuple[_Request, _Module]]:
        """Links some modules into an engine of their own, which frees their memory when it ends."""
        # with its own context, since it may end while other threads use theirs
        backing = llvm.parse_assembly(f'target triple = "{self._triple}"', llvm.create_context())
        linked = llvm.create_mcjit_compiler(backing, self._new_machine())
        linked.remove_module(backing)  # or the empty module would be compiled
        for request in requests:
            linked.add_object_file(llvm.ObjectFileRef.from_data(objects[request]))
        linked.finalize_object()
        addresses = [
            {name: int(linked.get_function_address(r.symbol(name))) for name in r.names}
            for r in requests
        ]
        nbytes = _OVERHEAD + sum(len(objects[r]) for r in requests)
        number = next(self._numbers)
        self._linked[number] = linked
        code = MachineCode(number, nbytes, self._dropped)
        for request, functions in zip(requests, addresses, strict=True):
            for name, address in functions.items():
                if not address:
                    raise ArgumentError(f"this LLVM IR defines no function {name}:\n{request.text}")
        return [(r, _Module(code, f)) for r, f in zip(requests, addresses, strict=True)]

    def _free_dropped(self) -> None:
        """Frees the memory of dropped code."""
        while self._dropped:
            self._linked.pop(self._dropped.popleft()).close()

    def free_dropped(self) -> None:
        """Frees the memory of code that nobody holds now, not when code is loaded next."""

        def free() -> None:
            with self._lock:
                self._free_dropped()

        thread_pool.uninterrupted(free)

    @property
    def loaded(self) -> int:
        """The number of modules whose code is loaded."""
        return len(self._modules)

    def _provide(self, requests: Sequence[_Request]) -> dict[str, _Module]:
        """The loaded modules by key; missing ones are compiled on several threads."""
        found: dict[str, _Module] = {}
        missing: dict[str, _Request] = {}
        for r in requests:
            module = self._modules.get(r.key)
            if module is None:
                missing[r.key] = r
            else:
                found[r.key] = module
        if not missing:
            return found
        # llvmlite holds its lock in Python code, which a handler on the main thread could end
        return found | thread_pool.uninterrupted(partial(self._compiled, missing))

    def _compiled(self, missing: dict[str, _Request]) -> dict[str, _Module]:
        longest_first = sorted(missing.values(), key=lambda r: -len(r.text))
        made: dict[_Request, bytes] = {}

        def build(lo: int, hi: int) -> None:
            for request in longest_first[lo:hi]:
                made[request] = self._object_code(request)

        thread_pool.parallel_for(len(longest_first), 1, build)
        return self._load(made)

    def after_fork(self) -> None:
        """In a forked child: the thread that held the lock is gone."""
        self._lock = threading.Lock()

    def functions(self, text: str, names: Sequence[str], vectorise: bool = True) -> dict[str, int]:
        """The addresses of several functions of `text`, which stay valid for the process."""
        request = self._request(text, names, vectorise)
        module = self._provide([request])[request.key]
        self._pinned.append(module)
        return module.functions

    def compile(self, text: str, name: str, vectorise: bool = True) -> Address:
        """The address of function `name` of `text`; names may repeat between calls."""
        return self.compile_all([(text, vectorise)], name)[0]

    def compile_all(self, sources: Sequence[Source], name: str = "step") -> list[Address]:
        """The address of function `name` of each source, compiled on all cores."""
        requests = {s: self._request(s[0], [name], s[1]) for s in dict.fromkeys(sources)}
        found = self._provide([*requests.values()])
        return [Address.of(found[requests[s].key], name) for s in sources]


_engine: Engine | None = None
_engine_lock = threading.Lock()


# llvmlite puts one lock around all its calls. A child forked while another thread is in such a call
# would deadlock, so a fork waits until no thread is in one. The lock's own methods are the
# handlers: no signal handler can raise between taking it and knowing that it is taken.
_LLVM_LOCK = ffi.lib._lock._lock


def _after_fork() -> None:
    global _engine_lock
    _engine_lock = threading.Lock()
    if _engine is not None:
        _engine.after_fork()
    if _LLVM_LOCK._is_owned():
        _LLVM_LOCK.release()
    else:  # an exception of a signal handler ended the wait
        _LLVM_LOCK._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LLVM_LOCK.acquire,
        after_in_parent=_LLVM_LOCK.release,
        after_in_child=_after_fork,
    )


def engine() -> Engine:
    """The process's engine, created on first use."""
    global _engine
    with _engine_lock:
        if _engine is None:
            _engine = thread_pool.uninterrupted(Engine)
        return _engine
