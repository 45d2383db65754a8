"""Functions that read a number from Python, and changes of it: through calls, and from classes."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import operator
import types
import weakref
from typing import Any, NamedTuple

from tests.support.reads.by_names import Case


class Held:
    rate = 2.0

    def __init__(self, k: float = 2.0) -> None:
        self.k = k
        self.held = {"k": k}
        self.list = [1.0, k]

    def get(self) -> Held:
        return self

    def set(self, v: float) -> None:
        self.k = v
        self.held["k"] = v
        self.list[1] = v


def set_rate(v: float) -> None:
    Held.rate = v


# --- objects that are known only after a call -----------------------------------------------------


def an_attribute_of_what_sorted_gives() -> Case:
    p = [Held()]
    return lambda x: x * getattr(sorted(p, key=id)[0].get(), "k"), p[0].set  # noqa: B009


def values_of_a_dict_of_an_element() -> Case:
    p = [Held()]
    return lambda x: x * [v for v in list(p)[0].held.values()][0], p[0].set  # noqa: C416, RUF015


def the_first_of_an_iterator_over_a_dict_of_an_element() -> Case:
    p = [Held()]
    return lambda x: x * next(iter(list(p)[0].held.values())), p[0].set  # noqa: RUF015


def a_loop_over_a_list_of_an_element() -> Case:
    p = [Held()]

    def f(x: Any) -> Any:
        for k in tuple(p)[0].list:  # noqa: RUF015
            x = x * k
        return x

    return f, p[0].set


def a_length_of_a_list_of_an_element() -> Case:
    p = [Held()]

    def change(v: float) -> None:
        p[0].list[:] = [0.0] * int(v)

    return lambda x: x * len(max(p, key=id).list), change


def an_attribute_of_a_result_of_map() -> Case:
    o = Held()
    return lambda x: x * list(map(lambda _: o, range(2)))[1].k, o.set  # noqa: C417


def an_attribute_of_a_result_of_filter() -> Case:
    p = [Held()]
    return lambda x: x * next(filter(lambda o: o is not None, p)).k, p[0].set


def an_attribute_of_a_result_of_reduce() -> Case:
    o = Held()
    return lambda x: x * functools.reduce(lambda _, b: o, range(3)).k, o.set


def an_attribute_of_a_result_of_a_partial() -> Case:
    o = Held()
    give = functools.partial(lambda a: a, o)
    return lambda x: x * give().k, o.set


def an_attribute_of_a_cached_result() -> Case:
    o = Held()

    @functools.lru_cache
    def give() -> Held:
        return o

    return lambda x: x * give().k, o.set


def a_cached_result_that_is_made_again() -> Case:
    o = Held()

    @functools.cache
    def give() -> float:
        return o.k

    def change(v: float) -> None:
        o.set(v)
        give.cache_clear()

    return lambda x: x * give(), change


def an_attribute_of_a_default_of_max() -> Case:
    o = Held()
    return lambda x: x * max([], default=o).k, o.set


def an_attribute_of_a_default_of_getattr() -> Case:
    o = Held()
    return lambda x: x * getattr(x, "nothing", o).k, o.set


def an_attribute_of_a_copy() -> Case:
    o = Held()
    return lambda x: x * copy.copy(o).k, o.set


def an_attribute_of_the_class_of_a_copy() -> Case:
    o = Held()
    return lambda x: x * copy.copy(o).rate, set_rate


def an_item_of_a_deep_copy() -> Case:
    o = Held()
    return lambda x: x * copy.deepcopy({"a": [o]})["a"][0].list[1], o.set


def an_attribute_through_a_weak_reference() -> Case:
    o = Held()
    r = weakref.ref(o)
    keep = [o]

    def change(v: float) -> None:
        keep[0].set(v)

    return lambda x: x * r().k, change  # type: ignore[union-attr]


def an_attribute_through_a_proxy() -> Case:
    o = Held()
    p = weakref.proxy(o)
    return lambda x: x * p.k, o.set


def an_attribute_by_attrgetter() -> Case:
    o = types.SimpleNamespace(inner=Held())
    get = operator.attrgetter("inner.k")
    return lambda x: x * get(o), o.inner.set


def an_attribute_of_a_class_by_attrgetter() -> Case:
    get = operator.attrgetter("rate")
    return lambda x: x * get(Held), set_rate


def an_item_by_itemgetter() -> Case:
    o = Held()
    return lambda x: x * operator.itemgetter("k")(o.held), o.set


def an_attribute_by_methodcaller() -> Case:
    o = Held()
    return lambda x: x * operator.methodcaller("get")(o).k, o.set


def an_attribute_of_what_is_chosen() -> Case:
    o = Held()
    none = None
    return lambda x: x * (none or o).k, o.set


def an_attribute_of_an_element_of_a_tuple_made_inside() -> Case:
    o = Held()
    return lambda x: x * (x.sum(), o)[1].k, o.set


def an_attribute_of_an_element_of_a_dict_made_inside() -> Case:
    o = Held()
    return lambda x: x * {"a": o, "b": x.sum()}["a"].k, o.set


def a_key_of_parts() -> Case:
    d = {("a", 1): 2.0}
    return lambda x: x * d["a", len([x])], lambda v: d.__setitem__(("a", 1), v)


# --- super, descriptors, metaclasses --------------------------------------------------------------


class Base:
    rate = 2.0

    def __init__(self) -> None:
        self.k = 2.0

    @property
    def own(self) -> Base:
        return self

    def scaled(self, x: Any) -> Any:
        return x * self.k


class Between(Base):
    pass


class Derived(Between):
    rate = 7.0

    def by_super(self, x: Any) -> Any:
        return x * super().rate

    def by_names(self, x: Any) -> Any:
        return x * super(Derived, self).rate  # noqa: UP008

    def by_a_name(self, x: Any) -> Any:
        above = super()
        return x * above.rate

    def by_a_property(self, x: Any) -> Any:
        return x * super().own.k

    def by_getattr(self, x: Any) -> Any:
        return x * getattr(super(), "rate")  # noqa: B009

    def scaled(self, x: Any) -> Any:
        return super().scaled(x)

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * super().rate


def set_base(v: float) -> None:
    Base.rate = v


def an_attribute_by_super() -> Case:
    return Derived().by_super, set_base


def an_attribute_by_super_with_names() -> Case:
    return Derived().by_names, set_base


def an_attribute_by_super_kept() -> Case:
    return Derived().by_a_name, set_base


def an_attribute_by_getattr_of_super() -> Case:
    return Derived().by_getattr, set_base


def an_attribute_by_a_property_of_super() -> Case:
    o = Derived()
    return o.by_a_property, lambda v: setattr(o, "k", v)


def an_attribute_by_a_method_of_super() -> Case:
    o = Derived()
    return o.scaled, lambda v: setattr(o, "k", v)


def an_attribute_by_super_in_a_class_method() -> Case:
    return lambda x: Derived.of_class(x), set_base


def an_attribute_that_a_class_between_gets() -> Case:
    def change(v: float) -> None:
        if "rate" in vars(Between):
            del Between.rate
        if v != 2.0:
            Between.rate = v

    return Derived().by_super, change


def a_method_of_super_that_is_replaced() -> Case:
    before = Base.scaled

    def change(v: float) -> None:
        Base.scaled = before if v == 2.0 else lambda self, x: x * v  # type: ignore[method-assign]

    return Derived().scaled, change


class Meta(type):
    rate = 2.0
    table = {"k": 2.0}  # noqa: RUF012

    @property
    def given(cls) -> float:
        return cls.table["k"]


class Made(metaclass=Meta):
    pass


def an_attribute_of_a_metaclass() -> Case:
    return lambda x: x * Made.rate, lambda v: setattr(Meta, "rate", v)


def a_property_of_a_metaclass() -> Case:
    return lambda x: x * Made.given, lambda v: Meta.table.__setitem__("k", v)


def an_attribute_of_a_class_that_was_missing() -> Case:
    class Bare:
        pass

    def change(v: float) -> None:
        if hasattr(Bare, "k"):
            del Bare.k
        if v != 2.0:
            Bare.k = v  # type: ignore[attr-defined]

    return lambda x: x * getattr(Bare, "k", 2.0), change


class Descriptor:
    def __init__(self) -> None:
        self.given = Held()

    def __get__(self, held: Any, kind: Any) -> Any:
        return self.given


class Described:
    d = Descriptor()

    @functools.cached_property
    def kept(self) -> float:
        return Held.rate

    def __getattr__(self, name: str) -> Any:
        if name == "made":
            return vars(type(self))["d"].given
        raise AttributeError(name)


def an_attribute_of_what_a_descriptor_gives() -> Case:
    o = Described()
    return lambda x: x * o.d.k, vars(Described)["d"].given.set


def an_attribute_of_what_a_descriptor_of_a_class_gives() -> Case:
    return lambda x: x * Described.d.k, vars(Described)["d"].given.set


def an_attribute_of_what_getattr_gives() -> Case:
    o = Described()
    return lambda x: x * o.made.k, vars(Described)["d"].given.set


def a_cached_property() -> Case:
    o = Described()

    def change(v: float) -> None:
        set_rate(v)
        vars(o).pop("kept", None)

    return lambda x: x * o.kept, change


class Operators:
    def __init__(self) -> None:
        self.given = Held()
        self.parts = [self.given]

    def __getitem__(self, k: Any) -> Held:
        return self.given

    def __add__(self, other: Any) -> Held:
        return self.given

    def __neg__(self) -> Held:
        return self.given

    def __call__(self) -> Held:
        return self.given

    def __iter__(self) -> Any:
        return iter(self.parts)

    def __bool__(self) -> bool:
        return self.given.k == 2.0

    def __eq__(self, other: object) -> bool:
        return self.given.k == other

    def __hash__(self) -> int:
        return 1

    def __enter__(self) -> Held:
        return self.given

    def __exit__(self, *args: Any) -> None:
        pass


def an_attribute_of_an_item_of_an_object() -> Case:
    o = Operators()
    return lambda x: x * o["k"].k, o.given.set


def an_attribute_of_a_sum_of_objects() -> Case:
    o = Operators()
    return lambda x: x * (o + 1).k, o.given.set


def an_attribute_of_a_negative() -> Case:
    o = Operators()
    return lambda x: x * (-o).k, o.given.set


def an_attribute_of_what_an_object_called_gives() -> Case:
    o = Operators()
    return lambda x: x * o().k, o.given.set


def an_attribute_of_the_elements_of_an_object() -> Case:
    o = Operators()
    return lambda x: x * sum(part.k for part in o), o.given.set


def the_truth_of_an_object() -> Case:
    o = Operators()
    return lambda x: x * 2.0 if o else x, o.given.set


def the_equality_of_objects() -> Case:
    o = Operators()
    return lambda x: x * 2.0 if o == 2.0 else x, o.given.set


def an_attribute_of_what_with_gives() -> Case:
    o = Operators()

    def f(x: Any) -> Any:
        with o as given:
            return x * given.k

    return f, o.given.set


def a_partial_method() -> Case:
    class With:
        table = {"k": 2.0}  # noqa: RUF012

        def by(self, name: str, x: Any) -> Any:
            return x * self.table[name]

        k = functools.partialmethod(by, "k")

    o = With()
    return lambda x: o.k(x), lambda v: With.table.__setitem__("k", v)


@dataclasses.dataclass(slots=True)
class Slotted:
    k: float = 2.0
    inner: list[float] = dataclasses.field(default_factory=lambda: [2.0])


def a_slot_of_a_dataclass() -> Case:
    o = Slotted()
    return lambda x: x * o.k, lambda v: setattr(o, "k", v)


def a_list_in_a_slot() -> Case:
    o = Slotted()
    return lambda x: x * dataclasses.astuple(o)[1][0], lambda v: o.inner.__setitem__(0, v)


class Fields(NamedTuple):
    a: Held
    b: int


def a_field_of_a_named_tuple() -> Case:
    o = Fields(Held(), 1)
    return lambda x: x * o._asdict()["a"].k, o.a.set


class Colour(enum.Enum):
    RED = 1


def an_attribute_of_a_member_of_an_enum() -> Case:
    Colour.RED.extra = Held()  # type: ignore[attr-defined]
    return lambda x: x * Colour.RED.extra.k, Colour.RED.extra.set  # type: ignore[attr-defined]
