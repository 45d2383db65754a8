"""One frame of a traced function, followed instruction by instruction.

The interpreter tells which instruction comes next (`sys.settrace`, opcode events); its operands are
worked out on a stack of our own, from names, constants, attributes and items: the objects
themselves where they are known, UNKNOWN where they are not. Whatever the instruction reads or
writes outside the function is handed to `Reads`.

The stack need not be exact: after a jump that is not understood it may hold too much or too little
below, and what is popped from an empty one is UNKNOWN. Within an expression it is right.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from everygrad._jit.guards import MISSING
from everygrad.errors import TraceError

if TYPE_CHECKING:
    from everygrad._jit.reads import Reads


class _Mark:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


UNKNOWN: Any = _Mark("unknown")
NULL: Any = _Mark("null")  # the empty place beside a callable


class Some(tuple[Any, ...]):
    """One of these objects, or something made of them by an iterator: which, is not known. What is
    read of it is read of all of them."""


class Fresh(list[Any]):
    """What goes into a container that is being made, in order; of a dict the values alone."""

    is_list = False  # its items can be read again by their places


Handler = Callable[["FrameReader", FrameType, Any, Any], None]
Plan = dict[int, tuple[Handler, Any, Any, str]]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    def keep(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return keep


class FrameReader:
    """One frame."""

    def __init__(self, reads: Reads, plan: Plan, next_tracer: Any) -> None:
        self.reads = reads
        self.plan = plan
        self.next_tracer = next_tracer  # a debugger's or a coverage tool's, which goes on
        self.stack: list[Any] = []
        self.undecided: tuple[str, int] | None = None  # a jump whose outcome is not known yet
        self.told = False  # whether an instruction was seen
        self.loaded: str | None = None  # a variable on top of the stack, to be looked up
        # the code of a function whose result is on top of the stack; UNKNOWN: of any that is called
        self.awaited: Any = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            if self.reads.failed is None:  # `guarded`, without another call
                try:
                    self.step(frame)
                except Exception as error:
                    self.reads.failed = error
        elif event == "return":
            self.reads.guarded(self.ended, frame, arg)
            # 3.12 has a frame that asks for such events call the thread's tracer even where there
            # is none, while another thread traces: a generator may go on untraced
            frame.f_trace_opcodes = False
        elif event == "exception":
            self.told = True
            self.stack.clear()
            self.undecided = self.loaded = None
        if self.next_tracer is not None and event != "opcode":
            self.next_tracer = self.next_tracer(frame, event, arg)
        return self

    def step(self, frame: FrameType) -> None:
        self.told = True
        offset = frame.f_lasti
        if self.undecided is not None:
            self.decide(offset)
        if self.loaded is not None:
            self.stack[-1:] = [frame.f_locals.get(self.loaded, UNKNOWN)]
            self.loaded = None
        found = self.plan.get(offset)
        if found is not None:
            self.awaited = None
            handler, arg, value, _ = found
            handler(self, frame, arg, value)
            if self.awaited is None:
                top = self.stack[-1] if self.stack else UNKNOWN
                if top is UNKNOWN or type(top) is Some:
                    self.awaited = UNKNOWN

    def ended(self, frame: FrameType, value: Any) -> None:
        if not self.told:
            raise TraceError(
                f"jit: this Python tells of no instruction of {frame.f_code.co_name}, so that what "
                f"it reads cannot be guarded; another tool may have taken sys.settrace"
            )
        self.reads.returned(frame, value)

    def decide(self, offset: int) -> None:
        """Where a conditional jump went."""
        assert self.undecided is not None
        kind, target = self.undecided
        self.undecided = None
        if kind == "or pop":
            if offset != target:
                self.pop()
        elif offset >= target:  # a loop that is over
            if offset not in self.plan or self.plan[offset][3] != "POP_ITER":  # from 3.14 on
                self.pop()
        else:
            self.push(UNKNOWN)

    def push(self, *values: Any) -> None:
        self.stack.extend(values)

    def pop(self) -> Any:
        return self.stack.pop() if self.stack else UNKNOWN

    def below(self, place: int) -> Any:
        """The value at a place counted from the top, which is 1."""
        return self.stack[-place] if 0 < place <= len(self.stack) else UNKNOWN

    def pops(self, count: int) -> list[Any]:
        """The uppermost values, the lowest first."""
        if count > len(self.stack):
            return [self.pop() for _ in range(count)][::-1]
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values


# --- names and constants -------------------------------------------------------------------------


@handles("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST")
def _const(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.stack.append(value)


@handles("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_FAST_AND_CLEAR")
def _fast(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    f.stack.append(frame.f_locals.get(name, UNKNOWN))


@handles("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
def _two_fast(f: FrameReader, frame: FrameType, arg: Any, names: Any) -> None:
    for name in names:
        _fast(f, frame, arg, name)


@handles("STORE_FAST_LOAD_FAST")
def _store_and_load(f: FrameReader, frame: FrameType, arg: Any, names: Any) -> None:
    f.pop()
    f.push(UNKNOWN)
    f.loaded = names[1]


@handles("STORE_FAST", "POP_TOP", "STORE_FAST_MAYBE_NULL", "POP_ITER")
def _drop(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.pop()


@handles("STORE_NAME", "DELETE_NAME")
def _store_name(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    if is_module(frame.f_locals):
        f.reads.name(frame.f_globals, name)
    elif f.reads.is_outside(frame.f_locals):
        f.reads.item(frame.f_locals, name)
    if f.plan[frame.f_lasti][3] == "STORE_NAME":
        f.pop()


@handles("STORE_FAST_STORE_FAST")
def _drop_two(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.pops(2)


@handles("LOAD_GLOBAL")
def _global(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    if arg & 1:
        f.push(NULL)
    f.push(f.reads.name(frame.f_globals, name))


@handles("LOAD_NAME")
def load_name(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    space = frame.f_locals
    local = space.get(name, MISSING)
    if local is MISSING or is_module(space):
        f.push(f.reads.name(frame.f_globals, name))
    else:
        f.push(f.reads.item(space, name) if f.reads.is_outside(space) else local)


def is_module(space: Any) -> bool:
    """Whether a dict of names is a module's, in which eval() and exec() work by default."""
    module = sys.modules.get(str(space.get("__name__")))
    return module is not None and vars(module) is space


class Made:
    """A function that is made inside."""

    def __init__(self, code: CodeType) -> None:
        self.code = code


class New:
    """An object of a class without an __init__, made just now."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


class Imported:
    """A module that is about to be imported."""

    def __init__(self, name: str) -> None:
        self.name = name

    def module(self) -> Any:
        return sys.modules.get(self.name, UNKNOWN)


@handles("STORE_GLOBAL", "DELETE_GLOBAL")
def _store_global(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    f.reads.name(frame.f_globals, name)
    f.pop()


@handles("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE")
def load_cell(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    f.push(f.reads.cell(frame, name))


@handles("STORE_DEREF")
def _store_deref(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    f.reads.cell(frame, name)
    f.pop()


@handles("DELETE_DEREF")
def _delete_deref(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    f.reads.cell(frame, name)


@handles("PUSH_NULL")
def _null(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.push(NULL)


@handles("COPY")
def _copy(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.push(f.below(arg))


@handles("SWAP")
def _swap(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    values = f.pops(arg)
    values[0], values[-1] = values[-1], values[0]
    f.push(*values)


# --- attributes and items ------------------------------------------------------------------------


_METHOD_BIT = sys.version_info >= (3, 12)  # LOAD_ATTR has taken over what LOAD_METHOD did


@handles("LOAD_ATTR")
def _attribute(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    value = f.reads.attribute(f.pop(), name)
    if _METHOD_BIT and arg & 1:
        f.push(NULL)
    f.push(value)
    f.awaited = f.reads.property_code


@handles("LOAD_METHOD")
def _method(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    f.push(NULL, f.reads.attribute(f.pop(), name))


@handles("LOAD_SUPER_ATTR")
def _super_attribute(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    callee, cls, held = f.pops(3)
    value = f.reads.attribute(_super(frame, callee, [cls, held]), name)
    if arg & 1:
        f.push(NULL)
    f.push(value)
    f.awaited = f.reads.property_code


def _super(frame: FrameType, callee: Any, args: list[Any]) -> Any:
    """super(), or super(cls, held), as the object it is: making it runs nothing of the user's."""
    if callee is not super:
        return UNKNOWN
    if not args and frame.f_code.co_argcount:
        names = ("__class__", frame.f_code.co_varnames[0])
        args = [frame.f_locals.get(name, UNKNOWN) for name in names]
    if len(args) != 2 or not isinstance(args[0], type) or args[1] is UNKNOWN:
        return UNKNOWN
    try:
        return super(*args)
    except TypeError:  # the instruction itself is about to raise it
        return UNKNOWN


@handles("STORE_ATTR")
def _store_attribute(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    stored, held = f.pops(2)
    f.reads.writes_attribute(held, name, stored)


@handles("DELETE_ATTR")
def _delete_attribute(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    f.reads.writes_attribute(f.pop(), name)


@handles("BINARY_SUBSCR")
def _item(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    held, key = f.pops(2)
    f.push(f.reads.item(held, key))


@handles("STORE_SUBSCR")
def _store_item(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    stored, held, key = f.pops(3)
    f.reads.writes_item(held, key, stored)


@handles("DELETE_SUBSCR")
def _delete_item(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    held, key = f.pops(2)
    f.reads.writes_item(held, key)


@handles("BINARY_SLICE")
def _slice(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    held, start, stop = f.pops(3)
    f.push(f.reads.item(held, _build_slice([start, stop])))


@handles("STORE_SLICE")
def _store_slice(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    stored, held, start, stop = f.pops(4)
    if isinstance(held, dict | list):
        f.reads.content(held)
    else:
        f.reads.writes_item(held, (start, stop), stored)


@handles("BUILD_SLICE")
def _slice_object(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.push(_build_slice(f.pops(arg)))


def _build_slice(parts: list[Any]) -> Any:
    return slice(*parts) if UNKNOWN not in parts and all(map(_is_simple, parts)) else UNKNOWN


def _is_simple(value: Any) -> bool:
    return value is None or type(value) in (int, float, str, bool)


# --- arithmetic and comparisons ------------------------------------------------------------------


@handles("BINARY_OP")
def _binary(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    a, b = f.pops(2)
    if value == "[]":  # from 3.14 on
        f.push(f.reads.item(a, b))
        return
    f.reads.consumed(a, b)
    f.push(_computed(value.rstrip("="), a, b))


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def _computed(symbol: str, a: Any, b: Any) -> Any:
    """The result where it is a small integer or text, such as an index or a key."""
    fn = _ARITHMETIC.get(symbol)
    if fn is None or type(a) is not type(b) or type(a) not in (int, str):
        return UNKNOWN
    if type(a) is int and max(abs(a), abs(b)) > 1 << 40:
        return UNKNOWN
    try:
        return fn(a, b)
    except Exception:  # the instruction itself is about to raise it
        return UNKNOWN


@handles("COMPARE_OP")
def _compare(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.reads.consumed(*f.pops(2))
    f.push(UNKNOWN)


@handles("IS_OP")
def _is(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.pops(2)
    f.push(UNKNOWN)


@handles("CONTAINS_OP")
def _contains(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    key, held = f.pops(2)
    f.reads.contains(held, key)
    f.push(UNKNOWN)


@handles("UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_POSITIVE")
def unary(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.reads.consumed(f.pop())
    f.push(UNKNOWN)


@handles("UNARY_NOT", "TO_BOOL")
def _truth(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.reads.length(f.pop())
    f.push(UNKNOWN)


@handles("GET_LEN")
def _get_len(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.reads.length(f.below(1))
    f.push(UNKNOWN)


# --- jumps and loops -----------------------------------------------------------------------------


@handles(
    *(
        f"POP_JUMP_{way}IF_{what}"
        for way in ("", "FORWARD_", "BACKWARD_")
        for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")
    )
)
def _pop_jump(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.reads.length(f.pop())


@handles("JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP")
def _jump_or_pop(f: FrameReader, frame: FrameType, arg: Any, target: Any) -> None:
    f.reads.length(f.below(1))
    f.undecided = ("or pop", target)


@handles("GET_ITER", "GET_YIELD_FROM_ITER")
def _iterate(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.reads.content(f.pop())
    f.push(UNKNOWN)


@handles("FOR_ITER")
def _for(f: FrameReader, frame: FrameType, arg: Any, target: Any) -> None:
    f.undecided = ("for", target)


@handles("END_FOR", "END_SEND")
def _end_for(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    pass  # what a loop leaves below does no harm


@handles("UNPACK_SEQUENCE")
def _unpack(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    held = f.pop()
    f.reads.content(held)
    known = isinstance(held, tuple | list) and len(held) == arg
    f.push(*(list(held)[::-1] if known else [UNKNOWN] * arg))


@handles("UNPACK_EX")
def _unpack_more(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.reads.content(f.pop())
    f.push(*[UNKNOWN] * (1 + (arg & 0xFF) + (arg >> 8)))


# --- functions -----------------------------------------------------------------------------------


@handles("MAKE_FUNCTION")
def _function(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    code = f.pop()
    if "SET_FUNCTION_ATTRIBUTE" not in dis.opmap:
        f.pops(bin(arg or 0).count("1"))
    if isinstance(code, CodeType):
        f.reads.made_inside.add(code)
        f.push(Made(code))
    else:
        f.push(UNKNOWN)


@handles("SET_FUNCTION_ATTRIBUTE")
def _function_attribute(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    made = f.pop()
    f.pop()
    f.push(made)


@handles("CALL")
def _call(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    args = f.pops(arg)
    callee = _callee(*f.pops(2))
    if callee is super:
        f.push(_super(frame, callee, args))
    elif callee is globals or (callee in (locals, vars) and not args):
        space = frame.f_globals if callee is globals else frame.f_locals
        if callee is globals or is_module(space):
            f.reads.mark(space, f"{callee.__name__}()")
        f.push(space)
    elif callee in (sys._getframe, inspect.currentframe) and all(type(a) is int for a in args):
        up: Any = frame
        for _ in range(args[0] if args else 0):
            up = UNKNOWN if up is UNKNOWN or up.f_back is None else up.f_back
        f.push(up)
    else:
        _result(f, callee, args)


@handles("CALL_KW")
def _call_with_names(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.pop()  # the names
    _call(f, frame, arg, value)


_ALWAYS_KEYWORDS = sys.version_info >= (3, 14)  # CALL_FUNCTION_EX takes them, NULL if none


@handles("CALL_FUNCTION_EX")
def _call_spread(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    held = f.pops(2 if _ALWAYS_KEYWORDS or (arg is not None and arg & 1) else 1)
    for part in held:
        f.reads.content(part)
    callee = _callee(*f.pops(2))
    known = isinstance(held[0], tuple) and not isinstance(held[0], Some)
    _result(f, callee, [*held[0], *held[1:]] if known else held)


def _callee(a: Any, b: Any) -> Any:
    """The callable among the two places that it may take."""
    if isinstance(a, Made):  # a comprehension, before 3.12
        return a
    return b if a is NULL else a if b is NULL else UNKNOWN


def _result(f: FrameReader, callee: Any, args: list[Any]) -> None:
    f.push(f.reads.call(callee, args))
    fn = callee.__func__ if isinstance(callee, MethodType) else callee
    fn = getattr(fn, "__init__", None) if isinstance(fn, type) else fn
    if isinstance(fn, FunctionType):
        f.awaited = fn.__code__
    elif isinstance(fn, Made):
        f.awaited = fn.code


@handles("RETURN_VALUE", "YIELD_VALUE")
def _return(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.pop()
    if f.plan[frame.f_lasti][3] == "YIELD_VALUE":
        f.push(UNKNOWN)
