"""LLVM IR of DLPack's two directions on the CPU: a tensor's capsule, and PyTorch's tensor as ours.

NumPy and PyTorch make the capsules, and their deleters end the memory's life; nothing here runs
when it ends.
"""

from __future__ import annotations

from everygrad.backends.cpu.llvm.cpython import (
    CONTIGUOUS,
    DATA,
    DTYPE,
    FLAGS,
    HEAD,
    NDIM,
    SIZES,
    STRIDES,
    WRITEABLE,
    declarations,
)
from everygrad.backends.cpu.runtime.fast_call_code import (
    COMMON,
    BuiltinCode,
    begin,
    helpers,
    new_tensor,
    payload,
    put,
)

BFLOAT = 4  # DLPack's code of such dtypes
_CPU = 1
# the dtype's code in DLManagedTensorVersioned
_CODE_VERSIONED = 52
# of a DLTensor, which DLManagedTensor begins with
_AT, _DEVICE, _AXES, _CODE, _BITS, _LANES, _SHAPE, _STRIDES, _OFFSET = (
    *(0, 8, 16, 20, 21, 22, 24, 32, 40),
)
_MOST_AXES = 16

EXPORT = ("slow", "name", "max_version", "bfloat16", "bits", "set_base", "old", "versioned", "cpu")
IMPORT = (
    "torch_tensor", "torch_parameter", "torch_bfloat16", "dtype", "numpy", "requires_grad",
    "is_neg", "to_dlpack", "old", "bfloat16", "set_base",
)  # fmt: skip
_EXPORT_WORD = {name: len(COMMON) + i for i, name in enumerate(EXPORT)}
_IMPORT_WORD = {name: len(COMMON) + i for i, name in enumerate(IMPORT)}


def _array_on(
    f: BuiltinCode, owner: str, set_base: str, dtype: str, layout: tuple[str, str, str, str]
) -> str:
    """A writeable array on the memory of `owner`. `layout`: axes, sizes, strides and address."""
    ndim, sizes, strides, data = layout
    f.line(f"call void @Py_IncRef(ptr {dtype})")  # NumPy takes it, and the owner
    make = f"call ptr {f.common('new_array')}(ptr {f.common('ndarray')}, ptr {dtype}, i32 {ndim}, "
    rest = f"ptr {sizes}, ptr {strides}, ptr {data}, i32 {WRITEABLE}, ptr null)"
    array = f.made(make + rest, "error")
    f.line(f"call void @Py_IncRef(ptr {owner})")
    done = f.emit("i32", f"call i32 {set_base}(ptr {array}, ptr {owner})")
    f.go_unless(f.equal(done, "0", "i32"), "error")
    return array


def _after_errors(f: BuiltinCode, otherwise: str) -> None:
    """Where errors of others lead: Python asks them once more, and explains what they say."""
    f.label("error")
    f.line("call void @PyErr_Clear()")
    f.line(f"br label %{otherwise}")
    f.label(otherwise)


def _exported(tensor: dict[str, int]) -> str:
    """exported(tensor, *, max_version): `Tensor.__dlpack__`."""
    f = BuiltinCode("define ptr @exported(ptr %self, ptr %args, i64 %n, ptr %names)")
    begin(f)

    def word(name: str) -> str:
        return f.word(_EXPORT_WORD[name])

    def capsule_of(array: str) -> str:
        put(f, [array])
        given = f"ptr {word('name')}, ptr %arrays, i64 1, ptr %names"
        return f.made(f"call ptr @PyObject_VectorcallMethod({given})", "error")

    f.go_unless(f.equal("%n", "1", "i64"), "slow")
    f.go_if(f.equal("%names", "null"), "named")
    f.go_unless(f.equal(f.emit("i64", "call i64 @PyTuple_Size(ptr %names)"), "1", "i64"), "slow")
    only = f.emit("ptr", "call ptr @PyTuple_GetItem(ptr %names, i64 0)")
    f.go_unless(f.equal(only, word("max_version")), "slow")
    at = f.emit("ptr", "getelementptr i8, ptr %arrays, i64 8")
    f.line(f"store ptr {f.load('%args', 8)}, ptr {at}")
    f.line("br label %named")
    f.label("named")
    x = f.load("%args", 0)
    a = f.emit("ptr", f"call ptr @payload(ptr %s, ptr {x})")
    f.go_if(f.equal(a, "null"), "slow")
    f.go_unless(f.equal(f.load(x, tensor["_node"]), f.common("none")), "slow")
    limit = f.emit("i64", f"call i64 @number(ptr {f.common('limit')})")
    f.go_unless(f.emit("i1", f"icmp sge i64 {limit}, 0"), "slow")  # else somebody watches
    f.hold(a)
    plain = f.emit("i32", f"and i32 {f.load(a, FLAGS, 'i32')}, {CONTIGUOUS | WRITEABLE}")
    f.go_unless(f.equal(plain, str(CONTIGUOUS | WRITEABLE), "i32"), "slow")
    f.go_if(f.equal(f.load(a, DTYPE), word("bfloat16")), "relabelled")
    f.leave(capsule_of(a))
    f.label("relabelled")  # NumPy exports no bfloat16: its bits, and the dtype's code written over
    layout = (f.load(a, NDIM, "i32"), f.load(a, SIZES), f.load(a, STRIDES), f.load(a, DATA))
    capsule = capsule_of(_array_on(f, a, word("set_base"), word("bits"), layout))
    for name, offset in (("versioned", _CODE_VERSIONED), ("old", _CODE)):
        valid = f"call i32 @PyCapsule_IsValid(ptr {capsule}, ptr {word(name)})"
        f.go_if(f.equal(f.emit("i32", valid), "0", "i32"), f"not_{name}")
        held = f"call ptr @PyCapsule_GetPointer(ptr {capsule}, ptr {word(name)})"
        code = f.emit("ptr", f"getelementptr i8, ptr {f.emit('ptr', held)}, i64 {offset}")
        f.line(f"store i8 {BFLOAT}, ptr {code}")
        f.leave(capsule)
        f.label(f"not_{name}")
    f.line("br label %slow")
    _after_errors(f, "slow")
    asked = f"ptr {word('slow')}, ptr %args, i64 %n, ptr %names"
    f.leave(f.made(f"call ptr @PyObject_Vectorcall({asked})"))
    return f.text()


def _exported_device() -> str:
    """exported_device(tensor): `Tensor.__dlpack_device__`."""
    f = BuiltinCode("define ptr @exported_device(ptr %self, ptr %args, i64 %n, ptr %names)")
    begin(f)
    f.go_unless(f.equal("%n", "1", "i64"), "slow")
    f.go_unless(f.equal("%names", "null"), "slow")
    a = f.emit("ptr", f"call ptr @payload(ptr %s, ptr {f.load('%args', 0)})")
    f.go_if(f.equal(a, "null"), "slow")
    f.leave(f.word(_EXPORT_WORD["cpu"]))
    f.label("slow")
    asked = f"ptr {f.word(_EXPORT_WORD['slow'])}, ptr %args, i64 %n, ptr %names"
    f.leave(f.made(f"call ptr @PyObject_Vectorcall({asked})"))
    return f.text()


def _imported(tensor: dict[str, int]) -> str:
    """imported(x) -> a tensor on the memory of a PyTorch tensor; None where that does not serve.

    It asks for PyTorch's NumPy array, whose memory PyTorch then never moves. NumPy has no bfloat16:
    such a tensor's capsule is asked for, and held by the array without being taken, so that its
    own destructor gives the memory back."""
    f = BuiltinCode("define ptr @imported(ptr %self, ptr %args, i64 %n)")
    begin(f)
    f.begin += [f"  %strides = alloca [{_MOST_AXES} x i64]", "  %found = alloca ptr"]
    f.begin.append("  %axis = alloca i64")

    def word(name: str) -> str:
        return f.word(_IMPORT_WORD[name])

    def method(name: str) -> str:
        given = f"ptr {word(name)}, ptr %args, i64 1, ptr null"
        return f.made(f"call ptr @PyObject_VectorcallMethod({given})", "error")

    def attribute(name: str) -> str:
        return f.made(f"call ptr @PyObject_GetAttr(ptr {x}, ptr {word(name)})", "error")

    f.go_unless(f.equal("%n", "1", "i64"), "miss")
    x = f.load("%args", 0)
    kind = f.load(x, HEAD - 8)
    f.go_if(f.equal(kind, word("torch_tensor")), "theirs")
    f.go_unless(f.equal(kind, word("torch_parameter")), "miss")
    f.line("br label %theirs")
    f.label("theirs")
    f.go_if(f.equal(attribute("dtype"), word("torch_bfloat16")), "half")
    array = method("numpy")
    f.go_unless(f.type_is(array, "ndarray"), "miss")
    f.line(f"store ptr {array}, ptr %found")
    f.line("br label %finish")

    f.label("half")
    f.go_unless(f.equal(attribute("requires_grad"), f.common("false")), "miss")
    f.go_unless(f.equal(method("is_neg"), f.common("false")), "miss")
    given = f"ptr {word('to_dlpack')}, ptr %args, i64 1, ptr null"
    capsule = f.made(f"call ptr @PyObject_Vectorcall({given})", "error")
    held = f.emit("ptr", f"call ptr @PyCapsule_GetPointer(ptr {capsule}, ptr {word('old')})")
    f.go_if(f.equal(held, "null"), "error")
    for offset, type_, wanted in (
        (_DEVICE, "i32", _CPU), (_CODE, "i8", BFLOAT), (_BITS, "i8", 16), (_LANES, "i16", 1),
    ):  # fmt: skip
        f.go_unless(f.equal(f.load(held, offset, type_), str(wanted), type_), "miss")
    ndim = f.load(held, _AXES, "i32")
    f.go_unless(f.emit("i1", f"icmp ule i32 {ndim}, {_MOST_AXES}"), "miss")
    steps = f.load(held, _STRIDES)
    f.go_if(f.equal(steps, "null"), "miss")
    start = f.load(held, _AT)
    f.go_if(f.equal(start, "null"), "miss")  # NumPy would take memory of its own
    begun = f.load(held, _OFFSET, "i64")
    address = f.emit("ptr", f"getelementptr i8, ptr {start}, i64 {begun}")
    count = f.emit("i64", f"zext i32 {ndim} to i64")
    f.line("store i64 0, ptr %axis")
    f.line("br label %more")
    f.label("more")
    i = f.emit("i64", "load i64, ptr %axis")
    f.go_unless(f.emit("i1", f"icmp slt i64 {i}, {count}"), "counted")
    step = f.emit(
        "i64", f"load i64, ptr {f.emit('ptr', f'getelementptr i64, ptr {steps}, i64 {i}')}"
    )
    to = f.emit("ptr", f"getelementptr i64, ptr %strides, i64 {i}")
    f.line(f"store i64 {f.emit('i64', f'shl i64 {step}, 1')}, ptr {to}")  # of two bytes each
    f.line(f"store i64 {f.emit('i64', f'add i64 {i}, 1')}, ptr %axis")
    f.line("br label %more")
    f.label("counted")
    layout = (ndim, f.load(held, _SHAPE), "%strides", address)
    made = _array_on(f, capsule, word("set_base"), word("bfloat16"), layout)
    f.line(f"store ptr {made}, ptr %found")
    f.line("br label %finish")

    f.label("finish")
    t = new_tensor(f, tensor, f.emit("ptr", "load ptr, ptr %found"))
    f.store(t, tensor["_node"], f.common("none"))
    f.leave(t)
    _after_errors(f, "miss")
    f.leave(f.common("none"))
    return f.text()


def source(tensor: dict[str, int]) -> str:
    """The module of `NAMES`. Argument: offsets of a tensor's slots."""
    functions = (_exported(tensor), _exported_device(), _imported(tensor))
    return "\n".join([declarations(), helpers(), payload(tensor), *functions, ""])


NAMES = ("exported", "exported_device", "imported")
