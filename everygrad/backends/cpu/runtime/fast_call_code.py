"""The code of `fast_calls`: LLVM IR of an op's fast path, forward and backward.

What it works with (types, functions, the op) are words of an array, the builtin's `self`, so that
one module of code serves every op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everygrad.backends.cpu.llvm.cpython import (
    CONTIGUOUS,
    DATA,
    DTYPE,
    FLAGS,
    HEAD,
    NDIM,
    SIZES,
    Function,
)

TENSOR_SLOTS = ("_data", "_node", "_source")
NODE_SLOTS = ("op", "parents", "saved", "params", "shape", "hooks")
MOST_INPUTS = 3

# the words
COMMON = (
    "ndarray", "tuple", "float32", "float64", "none", "false", "warning", "asarray", "shape",
    "new_array", "tensor", "node", "limit", "recording",
)  # fmt: skip
MOST_AXES = 4  # of arrays whose node's parameters depend on how many axes they have
# the parameters of a node by its number of axes, the last for any more
PARAMS = tuple(f"params{n}" for n in range(MOST_AXES + 2))
FORWARD = ("op", "records", "keeps", "nothing", "function32", "function64", "kernel32",
            "kernel64", "most", *PARAMS)  # fmt: skip
APPLY = ("kernels", "record", "retried", "generic", "unserved", "true", "name", "composed",
         "constant", "save")  # fmt: skip
MOST_OPERANDS = 4  # of `apply`
ROWS = ("kernel32", "kernel64", "most", "longest")
PART = ("count", "need0", "need1", "function32", "function64", "kernel32", "kernel64", "most")
_WORD = {name: i for i, name in enumerate(COMMON)}
FORWARD_WORD = {name: len(COMMON) + i for i, name in enumerate(FORWARD)}
ROWS_WORD = {name: len(COMMON) + i for i, name in enumerate(ROWS)}
APPLY_WORD = {name: len(COMMON) + i for i, name in enumerate(APPLY)}
_SLOW = len(COMMON)
BACKWARD_PARAMS = _SLOW + 1


def _part_word(part: int, name: str) -> int:
    return BACKWARD_PARAMS + len(PARAMS) + part * len(PART) + PART.index(name)


class BuiltinCode(Function):
    """A function that finds its words at %s."""

    def word(self, index: int, type_: str = "ptr") -> str:
        return self.load("%s", 8 * index, type_)

    def common(self, name: str) -> str:
        return self.word(_WORD[name])

    def type_is(self, value: str, name: str) -> str:
        return self.equal(self.load(value, HEAD - 8), self.common(name))


def payload(tensor: dict[str, int]) -> str:
    return f"""
; the payload of a tensor, if it is an array; nobody's reference
define internal ptr @payload(ptr %s, ptr %x) {{
  %type.at = getelementptr i8, ptr %x, i64 {HEAD - 8}
  %type = load ptr, ptr %type.at
  %wanted.at = getelementptr i8, ptr %s, i64 {8 * _WORD["tensor"]}
  %wanted = load ptr, ptr %wanted.at
  %same = icmp eq ptr %type, %wanted
  br i1 %same, label %tensor, label %other
other:
  %derived = call i32 @PyType_IsSubtype(ptr %type, ptr %wanted)
  %is = icmp ne i32 %derived, 0
  br i1 %is, label %tensor, label %none
tensor:
  %data.at = getelementptr i8, ptr %x, i64 {tensor["_data"]}
  %data = load ptr, ptr %data.at
  %unset = icmp eq ptr %data, null
  br i1 %unset, label %none, label %set
set:
  %array.at = getelementptr i8, ptr %data, i64 {HEAD - 8}
  %array = load ptr, ptr %array.at
  %ndarray.at = getelementptr i8, ptr %s, i64 {8 * _WORD["ndarray"]}
  %ndarray = load ptr, ptr %ndarray.at
  %plain = icmp eq ptr %array, %ndarray
  br i1 %plain, label %found, label %none
found:
  ret ptr %data
none:
  ret ptr null
}}
"""


def helpers() -> str:
    """Functions without references of their own."""
    return f"""
define internal i64 @size(ptr %a) {{
entry:
  %n.at = getelementptr i8, ptr %a, i64 {NDIM}
  %n = load i32, ptr %n.at
  %sizes.at = getelementptr i8, ptr %a, i64 {SIZES}
  %sizes = load ptr, ptr %sizes.at
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i.next, %more ]
  %all = phi i64 [ 1, %entry ], [ %all.next, %more ]
  %left = icmp slt i32 %i, %n
  br i1 %left, label %more, label %done
more:
  %at = getelementptr i64, ptr %sizes, i32 %i
  %one = load i64, ptr %at
  %all.next = mul i64 %all, %one
  %i.next = add i32 %i, 1
  br label %loop
done:
  ret i64 %all
}}
; whether b is an array of the dtype and the sizes of a, and contiguous
define internal i1 @alike(ptr %s, ptr %a, ptr %b) {{
entry:
  %type.at = getelementptr i8, ptr %b, i64 {HEAD - 8}
  %type = load ptr, ptr %type.at
  %ndarray.at = getelementptr i8, ptr %s, i64 {8 * _WORD["ndarray"]}
  %ndarray = load ptr, ptr %ndarray.at
  %plain = icmp eq ptr %type, %ndarray
  br i1 %plain, label %array, label %no
array:
  %da.at = getelementptr i8, ptr %a, i64 {DTYPE}
  %da = load ptr, ptr %da.at
  %db.at = getelementptr i8, ptr %b, i64 {DTYPE}
  %db = load ptr, ptr %db.at
  %dtype = icmp eq ptr %da, %db
  %flags.at = getelementptr i8, ptr %b, i64 {FLAGS}
  %flags = load i32, ptr %flags.at
  %flag = and i32 %flags, {CONTIGUOUS}
  %whole = icmp ne i32 %flag, 0
  %na.at = getelementptr i8, ptr %a, i64 {NDIM}
  %na = load i32, ptr %na.at
  %nb.at = getelementptr i8, ptr %b, i64 {NDIM}
  %nb = load i32, ptr %nb.at
  %axes = icmp eq i32 %na, %nb
  %fit.0 = and i1 %dtype, %whole
  %fit = and i1 %fit.0, %axes
  %sa.at = getelementptr i8, ptr %a, i64 {SIZES}
  %sa = load ptr, ptr %sa.at
  %sb.at = getelementptr i8, ptr %b, i64 {SIZES}
  %sb = load ptr, ptr %sb.at
  br i1 %fit, label %loop, label %no
loop:
  %i = phi i32 [ 0, %array ], [ %i.next, %next ]
  %left = icmp slt i32 %i, %na
  br i1 %left, label %more, label %yes
more:
  %a.at = getelementptr i64, ptr %sa, i32 %i
  %b.at = getelementptr i64, ptr %sb, i32 %i
  %one.a = load i64, ptr %a.at
  %one.b = load i64, ptr %b.at
  %same = icmp eq i64 %one.a, %one.b
  br i1 %same, label %next, label %no
next:
  %i.next = add i32 %i, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}}
; the number in a context variable; -1 where there is none
define internal i64 @number(ptr %var) {{
  %at = alloca ptr
  store ptr null, ptr %at
  %got = call i32 @PyContextVar_Get(ptr %var, ptr null, ptr %at)
  %value = load ptr, ptr %at
  %none = icmp eq ptr %value, null
  br i1 %none, label %nothing, label %there
there:
  %number = call i64 @PyLong_AsSsize_t(ptr %value)
  call void @Py_DecRef(ptr %value)
  %odd = icmp slt i64 %number, 0
  br i1 %odd, label %nothing, label %good
good:
  ret i64 %number
nothing:
  call void @PyErr_Clear()
  ret i64 -1
}}
"""


def computed(count: int) -> str:
    """An op on arrays: by a kernel if they are alike, contiguous and no more than `most` elements,
    otherwise by a Python function. Null: there is an error; None: that does not serve."""
    f = BuiltinCode(
        f"define internal ptr @computed{count}(ptr %s, ptr %function, ptr %kernel, i64 %most, "
        f"i64 %size, ptr %arrays)"
    )
    first = f.load("%arrays", 0)
    f.go_if(f.equal("%kernel", "null"), "call")
    f.go_unless(f.emit("i1", "icmp sle i64 %size, %most"), "call")
    operands = [f.load("%arrays", 8 * k) for k in range(count)]
    for operand in operands:
        alike = f"call i1 @alike(ptr %s, ptr {first}, ptr {operand})"
        f.go_unless(f.emit("i1", alike), "call")
    out = new_array(f, first)
    data = [f.load(a, DATA) for a in (out, *operands)]
    f.line(f"call void %kernel(i64 0, i64 %size, {', '.join(f'ptr {d}' for d in data)})")
    f.leave(out)
    f.label("call")
    given = f"ptr %arrays, i64 {count}, ptr null"
    found = f.made(f"call ptr @PyObject_Vectorcall(ptr %function, {given})")
    f.go_if(f.equal(found, f.common("none")), "found")
    f.go_unless(f.type_is(found, "ndarray"), "number")
    f.line("br label %found")
    f.label("found")
    f.leave(found)
    f.label("number")  # of no axes
    f.begin.append("  %one = alloca ptr")
    f.line(f"store ptr {found}, ptr %one")
    given = "ptr %one, i64 1, ptr null"
    f.leave(f.made(f"call ptr @PyObject_Vectorcall(ptr {f.common('asarray')}, {given})"))
    return f.text()


def new_array(f: BuiltinCode, like: str) -> str:
    """A contiguous array of the dtype and sizes of another."""
    dtype, sizes = f.load(like, DTYPE), f.load(like, SIZES)
    ndim = f.load(like, NDIM, "i32")
    f.line(f"call void @Py_IncRef(ptr {dtype})")  # NumPy takes it
    make = f"call ptr {f.common('new_array')}(ptr {f.common('ndarray')}, ptr {dtype}, i32 {ndim}, "
    return f.made(make + f"ptr {sizes}, ptr null, ptr null, i32 0, ptr null)")


def _params_of(f: BuiltinCode, array: str, first: int) -> str:
    """The parameters of a node whose result has the axes of an array."""
    ndim = f.load(array, NDIM, "i32")
    few = f.emit("i1", f"icmp ule i32 {ndim}, {MOST_AXES}")
    index = f.emit("i32", f"select i1 {few}, i32 {ndim}, i32 {MOST_AXES + 1}")
    at = f.emit("ptr", f"getelementptr i8, ptr %s, i64 {8 * first}")
    place = f.emit("ptr", f"getelementptr i64, ptr {at}, i32 {index}")
    return f.emit("ptr", f"load ptr, ptr {place}, align 8")


def begin(f: BuiltinCode) -> None:
    at = f"  %s.at = getelementptr i8, ptr %self, i64 {DATA}"
    f.begin += [at, "  %s = load ptr, ptr %s.at", f"  %arrays = alloca [{MOST_OPERANDS} x ptr]"]


def is_real(f: BuiltinCode, dtype: str, otherwise: str) -> str:
    """Whether a dtype is float32; elsewhere unless it is that or float64."""
    narrow = f.equal(dtype, f.common("float32"))
    wide = f.equal(dtype, f.common("float64"))
    f.go_unless(f.emit("i1", f"or i1 {narrow}, {wide}"), otherwise)
    return narrow


def choose(f: BuiltinCode, narrow: str, words: Callable[[str], int], what: str) -> str:
    one, other = f.word(words(f"{what}32")), f.word(words(f"{what}64"))
    return f.emit("ptr", f"select i1 {narrow}, ptr {one}, ptr {other}")


def put(f: BuiltinCode, values: Sequence[str], where: str = "%arrays") -> None:
    for k, value in enumerate(values):
        at = f.emit("ptr", f"getelementptr i8, ptr {where}, i64 {8 * k}")
        f.line(f"store ptr {value}, ptr {at}")


def new_tensor(f: BuiltinCode, tensor: dict[str, int], payload: str) -> str:
    """A tensor without a node as yet."""
    made = f.made(f"call ptr @PyType_GenericAlloc(ptr {f.common('tensor')}, i64 0)")
    f.store(made, tensor["_data"], payload)
    f.store(made, tensor["_source"], f.common("none"))
    return made


def _new_tuple(f: BuiltinCode, values: Sequence[str]) -> str:
    made = f.made(f"call ptr @PyTuple_New(i64 {len(values)})")
    for i, value in enumerate(values):
        f.line(f"call void @Py_IncRef(ptr {value})")
        f.emit("i32", f"call i32 @PyTuple_SetItem(ptr {made}, i64 {i}, ptr {value})")
    return made


def new_node(f: BuiltinCode, node: dict[str, int], out: str, slots: dict[str, str]) -> str:
    """The node of a result, given what is not the same for all."""
    shape = f.made(f"call ptr @PyObject_GetAttr(ptr {out}, ptr {f.common('shape')})")
    made = f.made(f"call ptr @PyType_GenericAlloc(ptr {f.common('node')}, i64 0)")
    for name, value in (slots | {"shape": shape, "hooks": f.common("none")}).items():
        f.store(made, node[name], value)
    return made


def forward(count: int, tensor: dict[str, int], node: dict[str, int]) -> str:
    """forward{count}(*tensors) -> Tensor | None."""
    f = BuiltinCode(f"define ptr @forward{count}(ptr %self, ptr %args, i64 %n)")
    begin(f)
    f.go_unless(f.equal("%n", str(count), "i64"), "miss")
    arrays, nodes = [], []
    for i in range(count):
        x = f.load("%args", 8 * i)
        a = f.emit("ptr", f"call ptr @payload(ptr %s, ptr {x})")
        f.go_if(f.equal(a, "null"), "miss")
        own = f.load(x, tensor["_node"])
        f.go_if(f.equal(own, "null"), "miss")
        arrays.append(f.hold(a))
        nodes.append(f.hold(own))
    dtype = f.load(arrays[0], DTYPE)
    narrow = is_real(f, dtype, "miss")
    limit = f.emit("i64", f"call i64 @number(ptr {f.common('limit')})")
    sizes = []
    for a in arrays:
        f.go_unless(f.equal(f.load(a, DTYPE), dtype), "miss")
        sizes.append(f.emit("i64", f"call i64 @size(ptr {a})"))
        f.go_unless(f.emit("i1", f"icmp sle i64 {sizes[-1]}, {limit}"), "miss")
    none = f.common("none")
    wanted = [f.emit("i1", f"icmp ne ptr {n}, {none}") for n in nodes]
    some = wanted[0]
    for other in wanted[1:]:
        some = f.emit("i1", f"or i1 {some}, {other}")
    records = f.emit("i1", f"icmp ne i64 {f.word(FORWARD_WORD['records'], 'i64')}, 0")
    asks = f.emit("i1", f"and i1 {some}, {records}")
    f.begin += ["  %mode = alloca i64", "  store i64 0, ptr %mode"]
    f.line(f"br i1 {asks}, label %ask, label %compute")
    f.label("ask")
    mode = f.emit("i64", f"call i64 @number(ptr {f.common('recording')})")
    f.go_unless(f.emit("i1", f"icmp ult i64 {mode}, 2"), "miss")
    f.line(f"store i64 {mode}, ptr %mode")
    f.line("br label %compute")
    f.label("compute")
    words = FORWARD_WORD.__getitem__
    function, kernel = (choose(f, narrow, words, what) for what in ("function", "kernel"))
    put(f, arrays)
    given = f"ptr %s, ptr {function}, ptr {kernel}, i64 {f.word(words('most'), 'i64')}, "
    given += f"i64 {sizes[0]}, ptr %arrays"
    out = f.made(f"call ptr @computed{count}({given})")
    f.go_if(f.equal(out, none), "miss")
    t = new_tensor(f, tensor, out)
    f.go_unless(f.equal(f.emit("i64", "load i64, ptr %mode"), "1", "i64"), "bare")
    # which of out and the inputs to keep: four bits for each set of inputs that want a gradient
    which = f.emit("i64", f"zext i1 {wanted[0]} to i64")
    for i, other in enumerate(wanted[1:], 1):
        bit = f.emit("i64", f"select i1 {other}, i64 {1 << i}, i64 0")
        which = f.emit("i64", f"or i64 {which}, {bit}")
    shift = f.emit("i64", f"mul i64 {which}, 4")
    row = f.emit("i64", f"lshr i64 {f.word(words('keeps'), 'i64')}, {shift}")
    keeps = f.emit("i64", f"and i64 {row}, 15")
    f.begin.append("  %saved = alloca ptr")
    f.line(f"store ptr {f.word(words('nothing'))}, ptr %saved")
    f.go_if(f.equal(keeps, "0", "i64"), "kept")
    values = []
    for j, value in enumerate((out, *arrays)):
        bit = f.emit("i64", f"and i64 {keeps}, {1 << j}")
        is_kept = f.emit("i1", f"icmp ne i64 {bit}, 0")
        values.append(f.emit("ptr", f"select i1 {is_kept}, ptr {value}, ptr {none}"))
    f.line(f"store ptr {_new_tuple(f, values)}, ptr %saved")
    f.line("br label %kept")
    f.label("kept")
    saved = f.emit("ptr", "load ptr, ptr %saved")
    params = _params_of(f, out, words("params0"))
    slots = {"op": f.word(words("op")), "parents": _new_tuple(f, nodes), "saved": saved,
             "params": params}  # fmt: skip
    f.store(t, tensor["_node"], new_node(f, node, out, slots))
    f.leave(t)
    f.label("bare")
    f.store(t, tensor["_node"], none)
    f.leave(t)
    f.label("miss")
    f.leave(f.common("none"))
    return f.text()


def backward(count: int, tensor: dict[str, int], node: dict[str, int]) -> str:
    """backward{count}(node, gradient, create_graph) -> the gradients of the inputs."""
    f = BuiltinCode(f"define ptr @backward{count}(ptr %self, ptr %args, i64 %n)")
    begin(f)
    f.go_unless(f.equal("%n", "3", "i64"), "slow")
    at, g, create = (f.load("%args", 8 * i) for i in range(3))
    f.go_unless(f.type_is(at, "node"), "slow")
    f.go_unless(f.equal(create, f.common("false")), "slow")
    parents, saved = f.load(at, node["parents"]), f.load(at, node["saved"])
    for held in (parents, saved):
        f.go_if(f.equal(held, "null"), "slow")
        f.go_unless(f.type_is(held, "tuple"), "slow")
        f.hold(held)
    a = f.emit("ptr", f"call ptr @payload(ptr %s, ptr {g})")
    f.go_if(f.equal(a, "null"), "slow")
    f.hold(a)
    params = _params_of(f, a, BACKWARD_PARAMS)
    f.go_unless(f.equal(f.load(at, node["params"]), params), "slow")
    narrow = is_real(f, f.load(a, DTYPE), "slow")
    limit = f.emit("i64", f"call i64 @number(ptr {f.common('limit')})")
    size = f.emit("i64", f"call i64 @size(ptr {a})")
    f.go_unless(f.emit("i1", f"icmp sle i64 {size}, {limit}"), "slow")
    f.begin += [f"  %value{i} = alloca ptr" for i in range(count)]
    for i in range(count):
        _one_part(f, i, (parents, saved, g, a, size, narrow), tensor)
    values = [f.emit("ptr", f"load ptr, ptr %value{i}") for i in range(count)]
    f.leave(_new_tuple(f, values))
    f.label("error")  # a filter raises NumPy's warnings: Python's way computes without them
    matches = f"call i32 @PyErr_ExceptionMatches(ptr {f.common('warning')})"
    f.go_if(f.equal(f.emit("i32", matches), "0", "i32"), "failed")
    f.line("call void @PyErr_Clear()")
    f.line("br label %slow")
    f.label("slow")
    given = "ptr %args, i64 %n, ptr null"
    f.leave(f.made(f"call ptr @PyObject_Vectorcall(ptr {f.word(_SLOW)}, {given})"))
    return f.text()


def _one_part(f: BuiltinCode, i: int, given: tuple[str, ...], tensor: dict[str, int]) -> None:
    """%value{i}: the gradient of input i, which is None where nobody asks for it."""
    parents, saved, g, a, size, narrow = given
    none = f.common("none")
    f.line(f"store ptr {none}, ptr %value{i}")
    parent = f.emit("ptr", f"call ptr @PyTuple_GetItem(ptr {parents}, i64 {i})")
    f.go_if(f.equal(parent, "null"), "error")
    f.go_if(f.equal(parent, none), f"done{i}")
    f.line(f"store ptr {g}, ptr %value{i}")

    def words(name: str) -> int:
        return _part_word(i, name)

    operands = f.word(words("count"), "i64")
    f.go_if(f.equal(operands, "0", "i64"), f"done{i}")  # it is the gradient itself
    put(f, [a])
    for k in range(MOST_INPUTS - 1):
        f.go_unless(f.emit("i1", f"icmp sgt i64 {operands}, {k + 1}"), f"compute{i}")
        need = f.word(words(f"need{k}"), "i64")
        value = f.emit("ptr", f"call ptr @PyTuple_GetItem(ptr {saved}, i64 {need})")
        f.go_if(f.equal(value, "null"), "error")
        at = f.emit("ptr", f"getelementptr i8, ptr %arrays, i64 {8 * (k + 1)}")
        f.line(f"store ptr {value}, ptr {at}")
    f.line(f"br label %compute{i}")
    f.label(f"compute{i}")
    function, kernel = (choose(f, narrow, words, what) for what in ("function", "kernel"))
    most = f.word(words("most"), "i64")
    every = f"ptr %s, ptr {function}, ptr {kernel}, i64 {most}, i64 {size}, ptr %arrays"
    cases = " ".join(f"i64 {n}, label %of{i}.{n}" for n in range(1, MOST_INPUTS))
    f.line(f"switch i64 {operands}, label %of{i}.{MOST_INPUTS} [ {cases} ]")
    for n in range(1, MOST_INPUTS + 1):
        f.label(f"of{i}.{n}")
        f.line(f"%out{i}.{n} = call ptr @computed{n}({every})")
        f.line(f"br label %computed{i}")
    f.label(f"computed{i}")
    found = ", ".join(f"[ %out{i}.{n}, %of{i}.{n} ]" for n in range(1, MOST_INPUTS + 1))
    out = f.own(f.emit("ptr", f"phi ptr {found}"))
    f.go_if(f.equal(out, "null"), "error")
    f.go_if(f.equal(out, none), "slow")
    t = new_tensor(f, tensor, out)
    f.store(t, tensor["_node"], none)
    f.line(f"store ptr {t}, ptr %value{i}")
    f.line(f"br label %done{i}")
    f.label(f"done{i}")
