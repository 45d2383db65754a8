"""Functions that read a number from Python, and changes of it: from objects and what they hold."""

from __future__ import annotations

import dataclasses
import os
import types
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg
from everygrad import nn
from tests.support.reads.by_names import Case

SPACE = types.SimpleNamespace(rate=2.0, inner=types.SimpleNamespace(rate=2.0))


class Plain:
    rate = 2.0

    def __init__(self) -> None:
        self.k = 2.0
        self.table = {"k": 2.0}

    def run(self, x: Any) -> Any:
        return x * self.k

    def by_class(self, x: Any) -> Any:
        return x * self.rate

    @property
    def doubled(self) -> float:
        return self.k * 2

    @staticmethod
    def fixed(x: Any) -> Any:
        return x * Plain.rate

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.rate

    @eg.jit
    def compiled(self, x: Any) -> Any:
        return x * self.k

    def set(self, v: float) -> None:
        self.k = v


def set_class(v: float) -> None:
    Plain.rate = v


def an_attribute() -> Case:
    o = Plain()
    return lambda x: x * o.k, o.set


def an_attribute_by_getattr() -> Case:
    o = Plain()
    return lambda x: x * getattr(o, "k"), o.set  # noqa: B009


def an_attribute_by_a_computed_name() -> Case:
    o = Plain()
    return lambda x: x * getattr(o, "".join(["k"])), o.set


def an_attribute_through_vars() -> Case:
    o = Plain()
    return lambda x: x * vars(o)["k"], o.set


def an_attribute_of_a_bound_method() -> Case:
    o = Plain()
    return o.run, o.set


def an_attribute_of_a_decorated_method() -> Case:
    o = Plain()
    return o.compiled, o.set


def an_attribute_by_a_property() -> Case:
    o = Plain()
    return lambda x: x * o.doubled, o.set


def an_item_of_an_attribute() -> Case:
    o = Plain()
    return lambda x: x * o.table["k"], lambda v: o.table.__setitem__("k", v)


def an_attribute_of_a_class() -> Case:
    return lambda x: x * Plain.rate, set_class


def an_attribute_of_the_class_of_an_object() -> Case:
    o = Plain()
    return lambda x: x * o.rate, set_class


def an_attribute_of_a_class_by_a_method() -> Case:
    return Plain().by_class, set_class


def an_attribute_of_a_class_by_a_static_method() -> Case:
    return lambda x: Plain.fixed(x), set_class


def an_attribute_of_a_class_by_a_class_method() -> Case:
    return lambda x: Plain().of_class(x), set_class


def an_attribute_of_the_class_of_an_object_made_inside() -> Case:
    return lambda x: x * Plain().rate, set_class


def an_attribute_that_hides_the_class() -> Case:
    o = Plain()

    def change(v: float) -> None:
        vars(o).pop("rate", None)
        if v != 2.0:
            o.rate = v

    return lambda x: x * o.rate, change


def a_method_that_is_replaced() -> Case:
    o = Plain()

    def change(v: float) -> None:
        vars(o).pop("run", None)
        if v != 2.0:
            o.run = lambda x: x * v  # type: ignore[method-assign]

    return lambda x: o.run(x), change


def an_attribute_of_a_namespace() -> Case:
    return lambda x: x * SPACE.inner.rate, lambda v: setattr(SPACE.inner, "rate", v)


class Slots:
    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 2.0


def a_slot() -> Case:
    o = Slots()
    return lambda x: x * o.k, lambda v: setattr(o, "k", v)


@dataclasses.dataclass
class Settings:
    k: float = 2.0
    table: dict[str, float] = dataclasses.field(default_factory=lambda: {"k": 2.0})


def a_dataclass() -> Case:
    o = Settings()
    return lambda x: x * o.k, lambda v: setattr(o, "k", v)


def a_dataclass_as_a_dict() -> Case:
    o = Settings()
    return lambda x: x * dataclasses.asdict(o)["table"]["k"], lambda v: o.table.update(k=v)


def an_object_that_is_an_argument() -> Case:
    o = Plain()
    f = eg.jit(lambda o, x: x * o.k)
    g = lambda x: f(o, x)  # noqa: E731
    g.compiled = True  # type: ignore[attr-defined]
    return g, o.set


class Called:
    def __init__(self) -> None:
        self.k = 2.0

    def __call__(self, x: Any) -> Any:
        return x * self.k


def an_object_that_is_called() -> Case:
    o = Called()
    return o, lambda v: setattr(o, "k", v)


class Indexed:
    def __init__(self) -> None:
        self.held = {"k": 2.0}

    def __getitem__(self, name: str) -> float:
        return self.held[name]

    def __len__(self) -> int:
        return int(self.held["k"])

    def __contains__(self, name: str) -> bool:
        return self.held["k"] == 2.0

    def __getattr__(self, name: str) -> float:
        return self.held["k"]


def an_object_with_items() -> Case:
    o = Indexed()
    return lambda x: x * o["k"], lambda v: o.held.__setitem__("k", v)


def an_object_with_a_length() -> Case:
    o = Indexed()
    return lambda x: x * len(o), lambda v: o.held.__setitem__("k", v)


def an_object_with_members() -> Case:
    o = Indexed()
    return lambda x: x * 2.0 if "k" in o else x, lambda v: o.held.__setitem__("k", v)


def an_object_that_makes_attributes() -> Case:
    o = Indexed()
    return lambda x: x * o.anything, lambda v: o.held.__setitem__("k", v)


class Pair(NamedTuple):
    held: list[float]
    name: str


def a_named_tuple() -> Case:
    p = Pair([2.0], "p")
    return lambda x: x * p.held[0], lambda v: p.held.__setitem__(0, v)


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = {"k": [2.0]}
        self.scale = 2.0

    def forward(self, x: Any) -> Any:
        return x * self.table["k"][0]


class WithScale(WithTable):
    def forward(self, x: Any) -> Any:
        return x * self.scale


def a_dict_inside_a_module() -> Case:
    m = WithTable()
    return lambda x: m(x), lambda v: m.table["k"].__setitem__(0, v)


def a_dict_inside_a_module_in_a_sequence() -> Case:
    m = WithTable()
    seq = nn.Sequential(nn.Identity(), m)
    return lambda x: seq(x), lambda v: m.table["k"].__setitem__(0, v)


def an_attribute_of_a_module() -> Case:
    m = WithScale()
    return lambda x: m(x), lambda v: setattr(m, "scale", v)


def a_module_itself() -> Case:
    m = WithScale()
    return m, lambda v: setattr(m, "scale", v)


def an_attribute_of_a_module_that_is_not_called() -> Case:
    m = WithScale()
    return lambda x: x * m.scale, lambda v: setattr(m, "scale", v)


def a_default() -> Case:
    def f(x: Any, table: dict[str, float] = {"k": 2.0}) -> Any:  # noqa: B006
        return x * table["k"]

    return f, lambda v: f.__defaults__[0].__setitem__("k", v)  # type: ignore[index]


def a_numpy_array() -> Case:
    a = np.array([2.0, 1.0], np.float32)
    return lambda x: x * eg.tensor(a)[0], lambda v: a.__setitem__(0, v)


def a_numpy_array_beside_a_tensor() -> Case:
    a = np.array([2.0, 1.0, 1.0], np.float32)
    return lambda x: x * a, lambda v: a.__setitem__(0, v)


def an_environment_variable() -> Case:
    os.environ["EVERYGRAD_TEST_READS"] = "2.0"
    return (
        lambda x: x * float(os.environ["EVERYGRAD_TEST_READS"]),
        lambda v: os.environ.__setitem__("EVERYGRAD_TEST_READS", str(v)),
    )


def an_attribute_of_a_function() -> Case:
    def f(x: Any) -> Any:
        return x * f.k  # type: ignore[attr-defined]

    f.k = 2.0  # type: ignore[attr-defined]
    return f, lambda v: setattr(f, "k", v)


def a_format() -> Case:
    d = {"k": 2.0}
    return lambda x: x * float(f"{d['k']:.3f}"), lambda v: d.__setitem__("k", v)


def a_match() -> Case:
    d = {"k": 2.0}

    def f(x: Any) -> Any:
        match d:
            case {"k": 2.0}:
                return x * 2.0
            case {"k": other}:
                return x * other
            case _:
                return x

    return f, lambda v: d.__setitem__("k", v)


def after_an_exception() -> Case:
    d = {"k": 2.0}

    def f(x: Any) -> Any:
        try:
            k = d["nothing"]
        except KeyError:
            k = d["k"]
        return x * k

    return f, lambda v: d.__setitem__("k", v)


def under_with() -> Case:
    d = {"k": 2.0}

    def f(x: Any) -> Any:
        with eg.no_grad():
            return x * d["k"]

    return f, lambda v: d.__setitem__("k", v)


def a_shape_from_outside() -> Case:
    held = [eg.ones((2,))]

    def change(v: float) -> None:
        held[0].rebind(np.ones(int(v), np.float32), None)

    return lambda x: x * held[0].shape[0], change


def recursion() -> Case:
    d = {"k": 2.0}

    def f(x: Any, n: int = 3) -> Any:
        return x if n == 0 else f(x, n - 1) * d["k"]

    return f, lambda v: d.__setitem__("k", v)
