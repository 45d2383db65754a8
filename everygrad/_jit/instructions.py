"""Instructions beyond names, operators and calls: containers, patterns, imports, bodies of classes;
and which handler each instruction of a function has."""

from __future__ import annotations

import dis
import weakref
from functools import partial
from types import CodeType, FrameType
from typing import Any

from everygrad._jit.bytecode import (
    HANDLERS,
    UNKNOWN,
    FrameReader,
    Fresh,
    Handler,
    Imported,
    Plan,
    handles,
    load_cell,
    load_name,
    unary,
)

_plans: dict[int, tuple[weakref.ref[CodeType], Plan]] = {}  # of the code there is, by its id


def plan_of(code: CodeType) -> Plan:
    """The handler and the argument of each instruction, by its offset: kept for the next trace. By
    id, since equal code may have constants of its own, such as the code of functions made inside.
    """
    found = _plans.get(id(code))
    if found is None:
        forget = partial(_plans.pop, id(code))  # native: nothing of Python's runs when code goes
        found = _plans[id(code)] = (weakref.ref(code, forget), _plan_of(code))
    return found[1]


def _plan_of(code: CodeType) -> Plan:
    return {
        i.offset: (
            _handler_of(i, code),
            i.arg,
            i.argrepr if i.opname == "BINARY_OP" else i.argval,
            i.opname,
        )
        for i in dis.get_instructions(code)
        if i.opname not in _NOTHING
    }


def _handler_of(i: dis.Instruction, code: CodeType) -> Handler:
    if i.opname in ("LOAD_FAST", "LOAD_FAST_BORROW") and i.argval not in code.co_varnames:
        return load_cell  # from 3.13 on, the cell of a closure that is about to be made
    return HANDLERS.get(i.opname, other)


_NOTHING = {  # neither takes nor gives a value
    "CACHE",
    "COPY_FREE_VARS",
    "DELETE_FAST",
    "EXTENDED_ARG",
    "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
    "JUMP_FORWARD",
    "KW_NAMES",
    "MAKE_CELL",
    "NOP",
    "NOT_TAKEN",
    "PRECALL",
    "RESUME",
    "RETURN_GENERATOR",
    "SETUP_ANNOTATIONS",
}


# --- containers made inside ----------------------------------------------------------------------


@handles("BUILD_TUPLE")
def _tuple(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.push(tuple(f.pops(arg)))


@handles("BUILD_LIST", "BUILD_SET")
def _fresh(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    made = Fresh(f.pops(arg))
    made.is_list = f.plan[frame.f_lasti][3] == "BUILD_LIST"
    f.push(made)


@handles("BUILD_MAP")
def _map(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.push(Fresh(f.pops(2 * arg)[1::2]))


@handles("BUILD_CONST_KEY_MAP")
def _const_map(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.push(Fresh(f.pops(arg + 1)[:-1]))


@handles("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE")
def _extend(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    held = f.pop()
    f.reads.content(held)
    made = f.below(arg)
    if isinstance(made, Fresh):
        known = isinstance(held, tuple | list) and made.is_list
        made.extend(held if known else [held])
        made.is_list = known


@handles("LIST_APPEND", "SET_ADD", "MAP_ADD")
def _append(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    item = f.pop()
    if f.plan[frame.f_lasti][3] == "MAP_ADD":
        f.pop()
    made = f.below(arg)
    if isinstance(made, Fresh):
        made.append(item)


@handles("LIST_TO_TUPLE")
def _to_tuple(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    pass  # read like the list


@handles("BUILD_STRING")
def _string(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    parts = f.pops(arg)
    f.push("".join(parts) if all(type(p) is str for p in parts) else UNKNOWN)


@handles("FORMAT_VALUE")
def _format(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    if arg & 4:
        f.pop()
    _formatted(f, simple=arg == 0)


@handles("FORMAT_SIMPLE")
def _format_simple(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    _formatted(f, simple=True)


def _formatted(f: FrameReader, simple: bool) -> None:
    value = f.pop()
    f.reads.guard_native(format, [value])
    f.reads.consumed(value)
    f.push(format(value) if simple and type(value) in (int, str) else UNKNOWN)


# --- patterns ------------------------------------------------------------------------------------


@handles("MATCH_KEYS")
def _match_keys(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    held, keys = f.below(2), f.below(1)
    f.reads.consumed(held)
    for key in keys if isinstance(keys, tuple) else ():
        f.reads.item(held, key)
    f.push(UNKNOWN)


@handles("MATCH_CLASS")
def _match_class(f: FrameReader, frame: FrameType, count: Any, value: Any) -> None:
    held, kind, names = f.pops(3)
    f.reads.asked(isinstance, [held, kind])
    places = f.reads.attribute(kind, "__match_args__") if count else ()
    for known in (places[:count] if isinstance(places, tuple) else (), names):
        for name in known if isinstance(known, tuple) else ():
            f.reads.attribute(held, name)
    f.reads.consumed(held)
    f.push(UNKNOWN)


@handles("MATCH_MAPPING", "MATCH_SEQUENCE", "LOAD_LOCALS", "LOAD_BUILD_CLASS")
def _more(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    f.push(UNKNOWN)  # what is below is looked at by its kind alone


# --- imports, and bodies of classes --------------------------------------------------------------


@handles("IMPORT_NAME")
def _import(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    level, names = f.pops(2)
    package = str(frame.f_globals.get("__package__") or "")
    if type(level) is int and level:
        name = ".".join([*package.split(".")[: len(package.split(".")) + 1 - level], name])
    f.reads.imported.add(name.strip("."))
    f.push(Imported(name.strip(".") if names else name.split(".")[0]))


@handles("IMPORT_FROM")
def _import_from(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    f.push(f.reads.attribute(f.below(1), name))


@handles("LOAD_FROM_DICT_OR_GLOBALS")
def _name_in_class(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    f.pop()
    load_name(f, frame, arg, name)


@handles("LOAD_FROM_DICT_OR_DEREF")
def _cell_in_class(f: FrameReader, frame: FrameType, arg: Any, name: Any) -> None:
    f.pop()
    f.push(f.reads.cell(frame, name))


# --- all others ----------------------------------------------------------------------------------


@handles("CALL_INTRINSIC_1")
def _intrinsic(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    if arg == 5:
        unary(f, frame, arg, value)
    elif arg != 6:  # a list becomes a tuple, which is read like the list
        other(f, frame, arg, value)


def other(f: FrameReader, frame: FrameType, arg: Any, value: Any) -> None:
    """An instruction without a handler: what it may take counts as looked at in full, and whatever
    is there afterwards may be any of it."""
    name = f.plan[frame.f_lasti][3]
    try:
        effect = dis.stack_effect(dis.opmap[name], arg, jump=False)
    except ValueError:
        effect = dis.stack_effect(dis.opmap[name], None, jump=False)
    taken = f.stack[-4:]
    f.reads.consumed(*taken)
    if effect < 0:
        f.pops(-effect)
    else:
        f.push(*[UNKNOWN] * effect)
    any_of_them = f.reads.some(taken)
    for k in range(1, min(4, len(f.stack)) + 1):
        f.stack[-k] = any_of_them
