"""Functions that read a number from Python, and changes of it: by namespaces, by bound methods,
from subclasses of plain types, and through operators that a class defines."""

from __future__ import annotations

import abc
import builtins
import collections
import functools
import inspect
import operator
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import everygrad as eg
from tests.support.reads.by_classes import Held
from tests.support.reads.by_names import Case

HERE = 2.0


def set_here(v: float) -> None:
    global HERE
    HERE = v


def _module() -> Any:
    made = types.ModuleType("everygrad_reads_space")
    made.K = 2.0  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made
    return made


# --- namespaces -----------------------------------------------------------------------------------


def a_name_of_globals() -> Case:
    return lambda x: x * globals()["HERE"], set_here


def a_name_by_eval() -> Case:
    return lambda x: x * eval("HERE"), set_here


def a_name_by_exec() -> Case:
    def f(x: Any) -> Any:
        names: dict[str, Any] = {}
        exec("k = HERE * 1", globals(), names)
        return x * names["k"]

    return f, set_here


def a_name_of_a_frame() -> Case:
    return lambda x: x * sys._getframe().f_globals["HERE"], set_here


def a_name_of_the_globals_of_a_function() -> Case:
    return lambda x: x * set_here.__globals__["HERE"], set_here


def an_item_of_the_dict_of_a_module() -> Case:
    m = _module()
    return lambda x: x * m.__dict__["K"], lambda v: setattr(m, "K", v)


def an_item_of_vars_of_a_module() -> Case:
    m = _module()
    return lambda x: x * vars(m)["K"], lambda v: setattr(m, "K", v)


def a_name_that_a_module_gets_later() -> Case:
    m = _module()
    return (
        lambda x: x * getattr(m, "LATER", 2.0),
        lambda v: m.__dict__.pop("LATER", None) if v == 2.0 else setattr(m, "LATER", v),
    )


def how_many_names_a_module_has() -> Case:
    m = _module()

    def change(v: float) -> None:
        for i in range(3):
            vars(m).pop(f"N{i}", None)
        vars(m).update({f"N{i}": 1 for i in range(int(v))})

    return lambda x: x * len([n for n in dir(m) if n[0] == "N"]), change


def a_module_that_is_replaced() -> Case:
    def change(v: float) -> None:
        _module().K = v

    def f(x: Any) -> Any:
        import everygrad_reads_space  # type: ignore[import-not-found]

        return x * everygrad_reads_space.K

    change(2.0)
    return f, change


def a_module_that_appears() -> Case:
    def change(v: float) -> None:
        sys.modules.pop("everygrad_reads_space", None)
        if v != 2.0:
            _module().K = v

    def f(x: Any) -> Any:
        try:
            import everygrad_reads_space

            return x * everygrad_reads_space.K
        except ImportError:
            return x * 2.0

    return f, change


def a_builtin_that_is_hidden_later() -> Case:
    def change(v: float) -> None:
        globals().pop("len", None)
        if v != 2.0:
            globals()["len"] = lambda _: v

    return lambda x: x * len([1, 1]), change


def a_builtin_of_the_programs_own() -> Case:
    def change(v: float) -> None:
        builtins.EVERYGRAD_READS = v  # type: ignore[attr-defined]

    change(2.0)
    return lambda x: x * EVERYGRAD_READS, change  # type: ignore[name-defined]  # noqa: F821


def an_item_of_the_dict_of_a_class() -> Case:
    kind = type("K", (), {"k": 2.0})
    return lambda x: x * kind.__dict__["k"], lambda v: setattr(kind, "k", v)


def the_name_of_a_class() -> Case:
    kind = type("K", (), {})
    return lambda x: x * len(kind.__name__), lambda v: setattr(kind, "__name__", "K" * int(v))


def a_member_of_a_class_by_inspect() -> Case:
    kind = type("K", (), {"k": 2.0})
    return lambda x: x * dict(inspect.getmembers(kind))["k"], lambda v: setattr(kind, "k", v)


def a_representation() -> Case:
    d = {"k": 2.0}
    return lambda x: x * float(repr(d)[6:9]), lambda v: d.__setitem__("k", v)


# --- of which class an object is ------------------------------------------------------------------


class _One:
    def own(self) -> float:
        return 2.0


class _Other:
    def own(self) -> float:
        return 3.0


def _turn(o: Any) -> Callable[[float], None]:
    return lambda v: setattr(o, "__class__", _One if v == 2.0 else _Other)


def whether_it_is_an_instance() -> Case:
    o = _One()
    return lambda x: x * 2.0 if isinstance(o, _One) else x, _turn(o)


def the_type_of_an_object() -> Case:
    o = _One()
    return lambda x: x * 2.0 if type(o) is _One else x, _turn(o)


def a_class_that_a_pattern_names() -> Case:
    o = _One()

    def f(x: Any) -> Any:
        match o:
            case _One():
                return x * 2.0
        return x

    return f, _turn(o)


def the_bases_of_a_class() -> Case:
    kind = type("K", (_One,), {})
    return (
        lambda x: x * kind().own(),
        lambda v: setattr(kind, "__bases__", (_One if v == 2.0 else _Other,)),
    )


def an_attribute_of_the_class_of_an_object_without_init() -> Case:
    kind = type("K", (), {"k": 2.0})
    return lambda x: x * kind().k, lambda v: setattr(kind, "k", v)


def a_class_that_is_registered() -> Case:
    class Base(abc.ABC):  # noqa: B024
        pass

    class Derived:
        pass

    o = Derived()

    def change(v: float) -> None:
        if v != 2.0:
            Base.register(Derived)

    return lambda x: x * (3.0 if isinstance(o, Base) else 2.0), change


def a_protocol() -> Case:
    @typing.runtime_checkable
    class Goes(typing.Protocol):
        def go(self) -> None: ...

    o = Held()
    return (
        lambda x: x * (3.0 if isinstance(o, Goes) else 2.0),
        lambda v: vars(o).pop("go", None) if v == 2.0 else setattr(o, "go", 1),
    )


def a_truth_that_a_class_gets_later() -> Case:
    kind = type("K", (), {})
    o = kind()

    def change(v: float) -> None:
        if v != 2.0:
            kind.__bool__ = lambda _: False  # type: ignore[attr-defined]
        elif "__bool__" in vars(kind):
            del kind.__bool__  # type: ignore[attr-defined]

    return lambda x: x * 2.0 if o else x, change


# --- operators that are replaced ------------------------------------------------------------------


def _operator(name: str, use: Callable[[Any, Any], Any], make: Callable[[float], Any]) -> Case:
    kind: Any = type("K", (), {})
    o = kind()

    def change(v: float) -> None:
        setattr(kind, name, make(v))

    change(2.0)
    return lambda x: use(x, o), change


def an_addition_that_is_replaced() -> Case:
    return _operator("__add__", lambda x, o: x * (o + 1), lambda v: lambda a, b: v)


def an_addition_from_the_right_that_is_replaced() -> Case:
    return _operator("__radd__", lambda x, o: x * (1 + o), lambda v: lambda a, b: v)


def an_item_that_is_replaced() -> Case:
    return _operator("__getitem__", lambda x, o: x * o[0], lambda v: lambda a, b: v)


def a_length_that_is_replaced() -> Case:
    return _operator("__len__", lambda x, o: x * len(o), lambda v: lambda a: int(v))


def a_call_that_is_replaced() -> Case:
    return _operator("__call__", lambda x, o: x * o(), lambda v: lambda a: v)


def an_iterator_that_is_replaced() -> Case:
    return _operator("__iter__", lambda x, o: x * sum(o), lambda v: lambda a: iter([v]))


def an_equality_that_is_replaced() -> Case:
    return _operator(
        "__eq__", lambda x, o: x * 2.0 if o == 1 else x, lambda v: lambda a, b: v == 2.0
    )


def a_conversion_that_is_replaced() -> Case:
    return _operator("__float__", lambda x, o: x * float(o), lambda v: lambda a: v)


def a_hash_that_is_replaced() -> Case:
    return _operator("__hash__", lambda x, o: x * hash(o), lambda v: lambda a: int(v))


def an_init_that_is_replaced() -> Case:
    return _operator(
        "__init__",
        lambda x, o: x * type(o)().k,
        lambda v: lambda a: vars(a).__setitem__("k", v),
    )


def a_new_that_is_replaced() -> Case:
    def make(v: float) -> Any:
        def new(cls: Any) -> Any:
            made = object.__new__(cls)
            made.k = v
            return made

        return new

    return _operator("__new__", lambda x, o: x * type(o)().k, make)


# --- methods kept or handed on --------------------------------------------------------------------


def a_method_of_a_dict_kept() -> Case:
    d = {"k": 2.0}
    get = d.get
    return lambda x: x * get("k"), lambda v: d.__setitem__("k", v)  # type: ignore[operator]


def a_method_of_a_dict_handed_on() -> Case:
    d = {"k": 2.0}
    return lambda x: x * sum(map(d.__getitem__, ["k"])), lambda v: d.__setitem__("k", v)


def a_method_of_a_dict_as_a_key() -> Case:
    d = {"a": 2.0, "b": 2.5}
    return (
        lambda x: x * {"a": 2.0, "b": 5.0}[sorted(["a", "b"], key=d.get)[0]],  # type: ignore[arg-type]
        lambda v: d.__setitem__("a", v),
    )


def a_partial_of_a_method() -> Case:
    d = {"k": 2.0}
    p = functools.partial(d.get, "k")
    return lambda x: x * p(), lambda v: d.__setitem__("k", v)


def keywords_of_a_partial() -> Case:
    p = functools.partial(lambda x, k: x * k, k=2.0)
    return p, lambda v: p.keywords.__setitem__("k", v)


def keywords_of_a_partial_inside_grad() -> Case:
    p = functools.partial(lambda x, k: (x * x * k).sum(), k=2.0)
    return eg.grad(p), lambda v: p.keywords.__setitem__("k", v)


def an_attribute_by_attrgetter_made_inside() -> Case:
    o = types.SimpleNamespace(inner=Held())
    return lambda x: x * operator.attrgetter("inner.k")(o), o.inner.set


def a_function_for_a_type() -> Case:
    @functools.singledispatch
    def scale(o: Any) -> float:
        return 2.0

    return lambda x: x * scale(3), lambda v: scale.register(int)(lambda o: v) and None


# --- subclasses of plain types, and of containers -------------------------------------------------


def _attribute_of(held: Any) -> Case:
    held.k = 2.0
    return lambda x: x * held.k, lambda v: setattr(held, "k", v)


def an_attribute_of_a_float() -> Case:
    return _attribute_of(type("F", (float,), {})(1.0))


def an_attribute_of_a_tuple() -> Case:
    return _attribute_of(type("T", (tuple,), {})((1, 2)))


def an_attribute_of_a_named_tuple() -> Case:
    return _attribute_of(type("P", (collections.namedtuple("P", "a"),), {})(1))


def a_dict_whose_attributes_are_its_items() -> Case:
    kind: Any = type("D", (dict,), {"__getattr__": dict.__getitem__})
    d = kind(k=2.0)
    return lambda x: x * d.k, lambda v: d.__setitem__("k", v)


def an_attribute_of_a_key() -> Case:
    d = {Held(): 1}
    return lambda x: x * sum(o.k for o in d), next(iter(d)).set


def an_attribute_of_a_weak_value() -> Case:
    o = Held()
    d = weakref.WeakValueDictionary({"k": o})
    return lambda x: x * d["k"].k, o.set


def a_length_of_a_weak_set() -> Case:
    kept = [Held() for _ in range(3)]
    d: weakref.WeakSet[Held] = weakref.WeakSet()

    def change(v: float) -> None:
        d.clear()
        d.update(kept[: int(v)])

    return lambda x: x * len(d), change


def an_item_of_a_users_dict() -> Case:
    d = collections.UserDict(k=Held())
    return lambda x: x * d["k"].k, d["k"].set
