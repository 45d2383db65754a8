"""Straight-line LLVM IR as text, and the one JIT engine that turns it into machine code.

`Emitter` names values and knows their types; it knows no op and no loop. Text rather than
llvmlite's builder: it is faster to make, and the loop metadata the vectoriser needs (distinct,
self-referring nodes) cannot be built there.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import struct
import threading
from typing import Any, NamedTuple

import llvmlite.binding as llvm


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


class Engine:
    """LLVM for this processor. Compiled code lives as long as the process."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        libm = ctypes.util.find_library("m")
        if libm is not None:  # Python may be linked without it
            llvm.load_library_permanently(libm)
        self.cpu: str = llvm.get_host_cpu_name()
        self.features: dict[str, bool] = dict(llvm.get_host_cpu_features())
        self._lock = threading.Lock()
        self._count = 0
        self._machine = self._new_machine()
        backing = llvm.parse_assembly(f'target triple = "{llvm.get_process_triple()}"')
        # the engine takes the machine it is given, so it gets one of its own
        self._engine = llvm.create_mcjit_compiler(backing, self._new_machine())

    def _new_machine(self) -> Any:
        target = llvm.Target.from_triple(llvm.get_process_triple())
        features = llvm.get_host_cpu_features().flatten()
        return target.create_target_machine(cpu=self.cpu, features=features, opt=3, jit=True)

    @property
    def attributes(self) -> str:
        """Function attributes of every kernel: LLVM halves AVX-512 vectors unless told not to."""
        width = ' "prefer-vector-width"="512"' if self.features.get("avx512f") else ""
        return "nounwind" + width

    def optimise(self, text: str) -> Any:
        """`text` parsed, verified and run through LLVM's O3 pipeline."""
        module = llvm.parse_assembly(text)
        module.triple = llvm.get_process_triple()
        module.data_layout = str(self._machine.target_data)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        options.slp_vectorization = True
        builder = llvm.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(module, builder)
        return module

    def assembly(self, text: str) -> str:
        """The machine code of `text`, for reading."""
        with self._lock:
            return str(self._machine.emit_assembly(self.optimise(text)))

    def compile(self, text: str, name: str) -> int:
        """The address of function `name` of `text`; names may repeat between calls."""
        with self._lock:
            self._count += 1
            unique = f"{name}_{self._count}"
            module = self.optimise(text.replace(f"@{name}(", f"@{unique}("))
            self._engine.add_module(module)
            self._engine.finalize_object()
            return int(self._engine.get_function_address(unique))


_engine: Engine | None = None
_engine_lock = threading.Lock()


def engine() -> Engine:
    """The process's engine, made when first asked for."""
    global _engine
    with _engine_lock:
        if _engine is None:
            _engine = Engine()
        return _engine
