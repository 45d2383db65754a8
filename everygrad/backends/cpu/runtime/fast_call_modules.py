"""The rest of the code of `fast_calls`: what dispatch does for any op, kernels over rows, and the
modules that are compiled."""

from __future__ import annotations

from everygrad.backends.cpu.llvm.cpython import (
    CONTIGUOUS,
    DATA,
    DTYPE,
    FLAGS,
    HEAD,
    NDIM,
    SIZES,
    declarations,
)
from everygrad.backends.cpu.runtime.fast_call_code import (
    APPLY_WORD,
    MOST_AXES,
    MOST_INPUTS,
    MOST_OPERANDS,
    ROWS_WORD,
    BuiltinCode,
    backward,
    begin,
    choose,
    computed,
    forward,
    helpers,
    is_real,
    new_array,
    new_node,
    new_tensor,
    payload,
    put,
)


def _apply(tensor: dict[str, int], node: dict[str, int]) -> str:
    """apply(op, inputs, params) -> the result of the op's kernel on arrays, recorded; or None."""
    f = BuiltinCode("define ptr @apply(ptr %self, ptr %args, i64 %n)")
    begin(f)
    f.go_unless(f.equal("%n", "3", "i64"), "miss")
    op, inputs, params = (f.load("%args", 8 * i) for i in range(3))
    count = f.emit("i64", f"call i64 @PyTuple_Size(ptr {inputs})")
    before = f.emit("i64", f"sub i64 {count}, 1")
    f.go_unless(f.emit("i1", f"icmp ult i64 {before}, {MOST_OPERANDS}"), "miss")
    limit = f.emit("i64", f"call i64 @number(ptr {f.common('limit')})")
    f.go_unless(f.emit("i1", f"icmp sge i64 {limit}, 0"), "miss")  # else somebody watches
    none = f.common("none")
    f.begin += ["  %some = alloca i1", "  store i1 false, ptr %some"]
    f.begin += ["  %mode = alloca i64", "  store i64 0, ptr %mode"]
    f.begin.append(f"  %nodes = alloca [{MOST_OPERANDS} x ptr]")
    for i in range(MOST_OPERANDS):
        f.go_unless(f.emit("i1", f"icmp sgt i64 {count}, {i}"), "ready")
        x = f.emit("ptr", f"call ptr @PyTuple_GetItem(ptr {inputs}, i64 {i})")
        a = f.emit("ptr", f"call ptr @payload(ptr %s, ptr {x})")
        f.go_if(f.equal(a, "null"), "miss")
        own = f.load(x, tensor["_node"])
        f.go_if(f.equal(own, "null"), "miss")
        for value, where in ((f.hold(a), "%arrays"), (f.hold(own), "%nodes")):
            at = f.emit("ptr", f"getelementptr i8, ptr {where}, i64 {8 * i}")
            f.line(f"store ptr {value}, ptr {at}")
        one = f.emit("i1", f"icmp ne ptr {own}, {none}")
        earlier = f.emit("i1", "load i1, ptr %some")
        f.line(f"store i1 {f.emit('i1', f'or i1 {earlier}, {one}')}, ptr %some")
    f.line("br label %ready")
    f.label("ready")

    def word(name: str) -> str:
        return f.word(APPLY_WORD[name])

    def asked(name: str) -> str:
        value = f.made(f"call ptr @PyObject_GetAttr(ptr {op}, ptr {word(name)})")
        return value if name == "name" else f.equal(value, word("true"))

    kernel = f"call ptr @PyDict_GetItem(ptr {word('kernels')}, ptr {asked('name')})"
    kernel = f.emit("ptr", kernel)
    f.go_if(f.equal(kernel, "null"), "miss")
    f.hold(kernel)
    f.go_unless(f.emit("i1", "load i1, ptr %some"), "compute")
    mode = f.emit("i64", f"call i64 @number(ptr {f.common('recording')})")
    f.go_unless(f.emit("i1", f"icmp ult i64 {mode}, 2"), "miss")
    f.go_if(f.equal(mode, "0", "i64"), "compute")
    f.go_if(asked("composed"), "miss")
    f.go_if(asked("constant"), "compute")
    f.line("store i64 1, ptr %mode")
    f.line("br label %compute")
    f.label("compute")
    given = f"ptr {kernel}, ptr %arrays, i64 {count}, ptr {params}"
    found = f.made(f"call ptr @PyObject_VectorcallDict({given})", "error")
    for nothing in (none, word("unserved")):
        f.go_if(f.equal(found, nothing), "miss")
    f.begin += ["  %out = alloca ptr", f"  %given = alloca [{MOST_OPERANDS} x ptr]"]
    f.line(f"store ptr {found}, ptr %out")
    f.go_if(f.type_is(found, "ndarray"), "made")
    kind = f"call i32 @PyType_IsSubtype(ptr {f.load(found, HEAD - 8)}, ptr {word('generic')})"
    f.go_if(f.equal(f.emit("i32", kind), "0", "i32"), "foreign")
    call = f"call ptr @PyObject_Vectorcall(ptr {f.common('asarray')}, ptr %out, i64 1, ptr null)"
    f.line(f"store ptr {f.made(call)}, ptr %out")
    f.line("br label %made")
    f.label("made")
    out = f.emit("ptr", "load ptr, ptr %out")
    t = new_tensor(f, tensor, out)
    f.go_unless(f.equal(f.emit("i64", "load i64, ptr %mode"), "1", "i64"), "bare")
    parents = f.made(f"call ptr @PyTuple_New(i64 {count})")
    for i in range(MOST_OPERANDS):
        f.go_unless(f.emit("i1", f"icmp sgt i64 {count}, {i}"), "related")
        own = f.load("%nodes", 8 * i)
        f.line(f"call void @Py_IncRef(ptr {own})")
        f.emit("i32", f"call i32 @PyTuple_SetItem(ptr {parents}, i64 {i}, ptr {own})")
    f.line("br label %related")
    f.label("related")
    put(f, (op, parents, out, inputs), "%given")
    method = f"ptr {word('save')}, ptr %given, i64 4, ptr null"
    saved = f.made(f"call ptr @PyObject_VectorcallMethod({method})")
    slots = {"op": op, "parents": parents, "saved": saved, "params": params}
    f.store(t, tensor["_node"], new_node(f, node, out, slots))
    f.leave(t)
    f.label("bare")
    f.store(t, tensor["_node"], none)
    f.leave(t)
    f.label("foreign")  # no array of the CPU
    put(f, (op, inputs, found, params), "%given")
    given = "ptr %given, i64 4, ptr null"
    f.leave(f.made(f"call ptr @PyObject_Vectorcall(ptr {word('record')}, {given})"))
    f.label("error")
    matches = f"call i32 @PyErr_ExceptionMatches(ptr {word('retried')})"
    f.go_if(f.equal(f.emit("i32", matches), "0", "i32"), "failed")
    f.line("call void @PyErr_Clear()")
    f.line("br label %miss")
    f.label("miss")
    f.leave(f.common("none"))
    return f.text()


def _rows(count: int, shared: int) -> str:
    """rows{count}_{shared}(*arrays) -> the result of a kernel over the rows along their last axis,
    or None. The last `shared` arrays are one row."""
    f = BuiltinCode(f"define ptr @rows{count}_{shared}(ptr %self, ptr %args, i64 %n)")
    begin(f)
    f.go_unless(f.equal("%n", str(count), "i64"), "miss")
    arrays = [f.load("%args", 8 * i) for i in range(count)]
    first = arrays[0]
    f.go_unless(f.type_is(first, "ndarray"), "miss")
    dtype = f.load(first, DTYPE)
    kernel = choose(f, is_real(f, dtype, "miss"), ROWS_WORD.__getitem__, "kernel")
    f.go_if(f.equal(kernel, "null"), "miss")
    ndim = f.load(first, NDIM, "i32")
    before = f.emit("i32", f"sub i32 {ndim}, 1")
    f.go_unless(f.emit("i1", f"icmp ult i32 {before}, {MOST_AXES}"), "miss")
    sizes = f.load(first, SIZES)
    at = f.emit("ptr", f"getelementptr i64, ptr {sizes}, i32 {before}")
    last = f.emit("i64", f"load i64, ptr {at}")
    size = f.emit("i64", f"call i64 @size(ptr {first})")
    for value, most in ((size, "most"), (last, "longest")):
        f.go_unless(f.emit("i1", f"icmp sgt i64 {value}, 0"), "miss")
        bound = f.word(ROWS_WORD[most], "i64")
        f.go_unless(f.emit("i1", f"icmp sle i64 {value}, {bound}"), "miss")
    for a in arrays[: count - shared]:
        f.go_unless(f.emit("i1", f"call i1 @alike(ptr %s, ptr {first}, ptr {a})"), "miss")
    for a in arrays[count - shared :]:
        f.go_unless(f.type_is(a, "ndarray"), "miss")
        f.go_unless(f.equal(f.load(a, DTYPE), dtype), "miss")
        f.go_unless(f.equal(f.load(a, NDIM, "i32"), "1", "i32"), "miss")
        f.go_unless(f.equal(f.load(f.load(a, SIZES), 0, "i64"), last, "i64"), "miss")
        flag = f.emit("i32", f"and i32 {f.load(a, FLAGS, 'i32')}, {CONTIGUOUS}")
        f.go_if(f.equal(flag, "0", "i32"), "miss")
    out = new_array(f, first)
    rows = f.emit("i64", f"sdiv i64 {size}, {last}")
    data = ", ".join(f"ptr {f.load(a, DATA)}" for a in (out, *arrays))
    f.line(f"call void {kernel}(i64 0, i64 {rows}, i64 {last}, {data})")
    f.leave(out)
    f.label("miss")
    f.leave(f.common("none"))
    return f.text()


def source(tensor: dict[str, int], node: dict[str, int]) -> str:
    """The module of `NAMES`. Arguments: offsets of the slots."""
    counts = range(1, MOST_INPUTS + 1)
    parts = [declarations(), helpers(), payload(tensor), *(computed(n) for n in counts)]
    parts += [forward(n, tensor, node) for n in counts]
    parts += [backward(n, tensor, node) for n in (1, 2)]
    parts.append(_apply(tensor, node))
    return "\n".join([*parts, ""])


def rows_source() -> str:
    """The module of `ROWS_NAMES`, which know nothing of tensors."""
    parts = [_rows(n, shared) for n in range(1, MOST_INPUTS + 1) for shared in range(n)]
    return "\n".join([declarations(), helpers(), *parts, ""])


NAMES = ("forward1", "forward2", "forward3", "backward1", "backward2", "apply")
ROWS_NAMES = ("rows1_0", "rows2_0", "rows2_1", "rows3_0", "rows3_1", "rows3_2")
