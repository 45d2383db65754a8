"""eg.jit looks at everything that tracing read from Python: another value there, another result.

Each case is a function that reads a number somewhere, and a change of that number. A compiled
function must give what the plain one gives before the change, after it, and after it is undone.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import math
import os
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn, optim
from everygrad.errors import TraceError
from tests.support import values

Case = tuple[Callable[[Any], Any], Callable[[float], None]]  # the function; set the number

GLOBAL = 2.0
TABLE = {"rate": 2.0, "nested": {"list": [1.0, 2.0]}}
SPACE = types.SimpleNamespace(rate=2.0, inner=types.SimpleNamespace(rate=2.0))


def set_global(v: float) -> None:
    global GLOBAL
    GLOBAL = v


def a_global() -> Case:
    return lambda x: x * GLOBAL, set_global


def a_global_of_a_function_called() -> Case:
    return lambda x: _times_global(x), set_global


def _times_global(x: Any) -> Any:
    return x * GLOBAL


def a_global_in_a_comprehension() -> Case:
    return lambda x: sum([x * GLOBAL for _ in range(2)], start=x), set_global


def a_global_in_a_generator_expression() -> Case:
    return lambda x: sum((x * GLOBAL for _ in range(2)), start=x), set_global


def a_global_in_an_inner_lambda() -> Case:
    return lambda x: (lambda y: y * GLOBAL)(x), set_global


def a_global_in_a_generator() -> Case:
    def parts(x: Any) -> Any:
        yield x
        yield x * GLOBAL

    return lambda x: sum(parts(x), start=x), set_global


def a_global_inside_grad() -> Case:
    return eg.grad(lambda x: (x * x * GLOBAL).sum()), set_global


def a_global_inside_vmap() -> Case:
    return eg.vmap(lambda x: x * GLOBAL), set_global


def a_global_inside_checkpoint() -> Case:
    return lambda x: eg.checkpoint(lambda y: y * GLOBAL, x), set_global


def a_global_inside_partial() -> Case:
    return functools.partial(lambda k, x: x * GLOBAL * k, 3.0), set_global


def a_global_inside_wraps() -> Case:
    def plain(x: Any) -> Any:
        return x * GLOBAL

    @functools.wraps(plain)
    def wrapper(*args: Any) -> Any:
        return plain(*args)

    return wrapper, set_global


def a_global_inside_map() -> Case:
    scaled = lambda x, k: x * k * GLOBAL  # noqa: E731
    return lambda x: sum(map(scaled, (x, x), (1.0, 2.0)), start=x), set_global


def a_global_inside_a_hook() -> Case:
    def f(x: Any) -> Any:
        y = x.detach().requires_grad_()
        y.register_hook(lambda g: g * GLOBAL)
        (y * y).sum().backward()
        return y.grad

    return f, set_global


def a_cell() -> Case:
    k = 2.0

    def change(v: float) -> None:
        nonlocal k
        k = v

    return lambda x: x * k, change


def a_cell_of_an_inner_lambda() -> Case:
    k = 2.0

    def change(v: float) -> None:
        nonlocal k
        k = v

    return lambda x: (lambda y: y * k)(x), change


def a_cell_in_a_comprehension() -> Case:
    k = 2.0

    def change(v: float) -> None:
        nonlocal k
        k = v

    return lambda x: eg.stack([x * k for _ in range(2)]), change


def a_cell_of_a_wrapped_function() -> Case:
    k = 2.0

    def change(v: float) -> None:
        nonlocal k
        k = v

    return eg.grad(lambda x: (x * x * k).sum()), change


def an_item() -> Case:
    d = {"k": 2.0}
    return lambda x: x * d["k"], lambda v: d.__setitem__("k", v)


def an_item_of_a_global() -> Case:
    return lambda x: x * TABLE["rate"], lambda v: TABLE.__setitem__("rate", v)


def an_item_deep_down() -> Case:
    return (
        lambda x: x * TABLE["nested"]["list"][1],  # type: ignore[index]
        lambda v: TABLE["nested"]["list"].__setitem__(1, v),  # type: ignore[index]
    )


def an_item_by_a_computed_key() -> Case:
    d = {f"k{i}": {"v": 2.0} for i in range(3)}
    return (
        lambda x: sum((x * d[f"k{i}"]["v"] for i in range(3)), start=x),
        lambda v: d["k1"].__setitem__("v", v),
    )


def an_item_by_get() -> Case:
    d = {"k": {"v": 2.0}}
    return lambda x: x * d.get("k", {})["v"], lambda v: d["k"].__setitem__("v", v)


def an_item_that_was_missing() -> Case:
    d: dict[str, float] = {}

    def change(v: float) -> None:
        d.clear()
        if v != 2.0:
            d["k"] = v

    return lambda x: x * d.get("k", 2.0), change


def an_item_through_a_local() -> Case:
    d = {"a": {"k": 2.0}}

    def f(x: Any) -> Any:
        inner = d["a"]
        k = inner["k"]
        return x * k

    return f, lambda v: d["a"].__setitem__("k", v)


def an_item_in_a_loop() -> Case:
    layers = [{"k": 1.0}, {"k": 2.0}]

    def f(x: Any) -> Any:
        for layer in layers:
            x = x * layer["k"]
        return x

    return f, lambda v: layers[1].__setitem__("k", v)


def items_of_a_dict_in_a_loop() -> Case:
    d = {"a": {"k": 1.0}, "b": {"k": 2.0}}

    def f(x: Any) -> Any:
        for _, v in d.items():
            x = x * v["k"]
        return x

    return f, lambda v: d["b"].__setitem__("k", v)


def an_item_by_enumerate_and_zip() -> Case:
    ks = [1.0, 2.0]

    def f(x: Any) -> Any:
        for i, (k, _) in enumerate(zip(ks, range(2), strict=True)):
            x = x * k + i
        return x

    return f, lambda v: ks.__setitem__(1, v)


def a_list_unpacked() -> Case:
    ks = [1.0, 2.0]

    def f(x: Any) -> Any:
        a, b = ks
        return x * a * b

    return f, lambda v: ks.__setitem__(1, v)


def a_list_spread() -> Case:
    ks = [1.0, 2.0]
    return lambda x: _scaled(x, *ks), lambda v: ks.__setitem__(1, v)


def keywords_spread() -> Case:
    ks = {"a": 1.0, "b": 2.0}
    return lambda x: _scaled(x, **ks), lambda v: ks.__setitem__("b", v)


def _scaled(x: Any, a: float, b: float) -> Any:
    return x * a * b


def a_sum_of_a_list() -> Case:
    ks = [1.0, 2.0]
    return lambda x: x * sum(ks), lambda v: ks.__setitem__(1, v)


def a_list_given_to_the_library() -> Case:
    ks = [1.0, 2.0]
    return lambda x: x * eg.tensor(ks).sum(), lambda v: ks.__setitem__(1, v)


def a_length() -> Case:
    ks = [0.0, 0.0]

    def change(v: float) -> None:
        ks[:] = [0.0] * int(v)

    return lambda x: x * len(ks), change


def whether_a_list_is_empty() -> Case:
    ks = [0.0]

    def change(v: float) -> None:
        ks[:] = [0.0] * (v == 2.0)

    return lambda x: x * 2.0 if ks else x, change


def whether_a_key_is_there() -> Case:
    d = {"k": 1}

    def change(v: float) -> None:
        d.clear()
        d.update({"k": 1} if v == 2.0 else {})

    return lambda x: x * 2.0 if "k" in d else x, change


def a_member_of_a_set() -> Case:
    s = {2.0}

    def change(v: float) -> None:
        s.clear()
        s.add(v)

    return lambda x: x * 2.0 if 2.0 in s else x, change


def a_slice_of_a_list() -> Case:
    ks = [0.0, 1.0, 2.0]
    return lambda x: x * sum(ks[1:]), lambda v: ks.__setitem__(2, v)


def a_deque() -> Case:
    ks = collections.deque([1.0, 2.0])
    return lambda x: x * ks[-1], lambda v: ks.__setitem__(1, v)


def a_list_in_a_tuple() -> Case:
    held = ([1.0, 2.0], "text")
    return lambda x: x * held[0][1], lambda v: held[0].__setitem__(1, v)


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


CASES = [
    fn
    for fn in list(globals().values())
    if isinstance(fn, types.FunctionType) and fn.__annotations__.get("return") == "Case"
]


@pytest.mark.parametrize("case", CASES, ids=lambda fn: fn.__name__)
def test_a_change_of_what_was_read_is_seen(case: Callable[[], Case]) -> None:
    fn, change = case()
    plain = getattr(fn, "jitted", fn)
    plain = getattr(plain, "uncompiled", plain)
    bound = getattr(fn, "instance", None)
    compiled = fn if bound is not None or hasattr(fn, "compiled") else eg.jit(fn)
    x = eg.tensor([1.0, 2.0, 3.0])
    try:
        results = []
        for v in (2.0, 2.0, 3.0, 3.0, 2.0):
            change(v)
            args = (x,) if bound is None else (bound, x)
            if hasattr(fn, "compiled"):  # a function that calls a compiled one
                want = values(x) * v
            else:
                want = values(plain(*args))
            got = values(compiled(x))
            np.testing.assert_array_equal(got, want)
            results.append(got.tolist())
        assert results[1] != results[2]
    finally:
        change(2.0)


def test_enough_cases() -> None:
    assert len(CASES) > 60


@pytest.mark.parametrize("before", [0.0, -0.0, 1, 1.0, True, math.nan, 2 + 0j, "a", None])
@pytest.mark.parametrize("after", [0.0, -0.0, 1, 1.0, True, math.nan, 2 + 0j, "a", None])
def test_values_that_only_look_alike(before: Any, after: Any) -> None:
    """1, 1.0 and True are told apart, as are 0.0 and -0.0; equal values are not."""
    held = {"k": before}
    seen = eg.jit(lambda x: x + (0.0 if held["k"] is None else 1.0))
    seen(eg.ones((2,)))
    held["k"] = after
    count = seen.count
    seen(eg.ones((2,)))
    alike = type(before) is type(after) and repr(before) == repr(after)
    assert seen.count == count + (not alike)


def test_signs_of_zeros_in_a_module_and_a_name() -> None:
    zero = 0.0
    m = WithScale()
    m.scale = 0.0
    f, g = eg.jit(lambda x: x * zero), eg.jit(m)
    x = eg.tensor([1.0])
    assert not np.signbit(values(f(x)))[0]
    assert not np.signbit(values(g(x)))[0]
    zero, m.scale = -0.0, -0.0
    assert np.signbit(values(f(x)))[0]
    assert np.signbit(values(g(x)))[0]


def test_a_parameter_appended_to_a_group() -> None:
    a, b = (eg.ones((2,)).requires_grad_() for _ in range(2))
    opt = optim.SGD([a], lr=0.125)

    def step() -> Any:
        loss = (a * b).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        b.grad = None
        return loss

    compiled = eg.jit(step)
    compiled()
    compiled()
    opt.param_groups[0]["params"].append(b)
    compiled()
    assert values(b.detach()).tolist() == [1.0 - 0.125 * 0.75] * 2


# --- nothing is traced without need --------------------------------------------------------------


def test_what_was_not_read_may_change() -> None:
    d = {"k": 2.0, "other": 1}
    o = Plain()
    history: list[int] = []
    f = eg.jit(lambda x: x * d["k"] * o.k)
    for i in range(5):
        f(eg.ones((2,)))
        d["other"] += 1
        d[f"new{i}"] = i
        o.unread = i  # type: ignore[attr-defined]
        history.append(i)
        d["k"] = float("2.0")  # equal, another object
    assert f.count == 1


def test_a_training_step_with_a_configuration_is_traced_once() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    opt = optim.AdamW(model.parameters(), lr=0.1)
    config = {"clip": 1.0, "losses": {"a": 0.5}}
    state = types.SimpleNamespace(step=0)

    def step(x: Any) -> Any:
        loss = (model(x) ** 2).mean() * config["losses"]["a"]  # type: ignore[index]
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad = p.grad.clip(-config["clip"], config["clip"])
        opt.step()
        return loss

    compiled = eg.jit(step)
    for _ in range(6):
        compiled(eg.ones((2, 3)))
        state.step += 1
    first = compiled.count
    for _ in range(6):
        compiled(eg.ones((2, 3)))
    assert compiled.count == first <= 2


# --- refusals ------------------------------------------------------------------------------------


def refused(name: str, fn: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(TraceError, match=name):
        eg.jit(fn)(*args)


def test_changes_of_what_was_read_are_refused() -> None:
    d: dict[str, Any] = {"n": 1, "list": [1], "set": {1}}
    o = Plain()
    x = eg.ones((2,))

    def counts(x: Any) -> Any:
        d["n"] += 1
        return x

    def writes(x: Any) -> Any:
        d["n"] = 7
        return x

    def appends(x: Any) -> Any:
        d["list"].append(2)
        return x

    def adds(x: Any) -> Any:
        d["set"].add(5)
        return x

    def removes(x: Any) -> Any:
        d["list"].pop()
        return x

    def deletes(x: Any) -> Any:
        del d["n"]
        return x

    def sets(x: Any) -> Any:
        o.k = 5.0
        return x

    def sets_by_name(x: Any) -> Any:
        setattr(o, "k", o.k + 1)  # noqa: B010
        return x

    refused(r"changes d\['n'\],", counts, x)
    refused(r"changes d\['n'\],", writes, x)
    refused(r"d\['list'\]", appends, x)
    refused(r"d\['set'\]", adds, x)
    refused(r"d\['list'\]", removes, x)
    refused(r"d\['n'\]", deletes, x)
    refused(r"changes o\.k,", sets, x)
    refused(r"changes o\.k,", sets_by_name, x)


def test_changing_a_container_among_the_arguments_is_refused() -> None:
    x = eg.ones((2,))

    def replaces(d: Any) -> Any:
        d["a"] = d["a"] * 2.0
        return d["a"]

    def adds(d: Any) -> Any:
        d["b"] = d["a"]
        return d["a"]

    def appends(xs: Any) -> Any:
        xs.append(xs[0])
        return xs[0]

    refused("container among its arguments", replaces, {"a": x})
    refused("container among its arguments", adds, {"a": x})
    refused("container among its arguments", appends, [x])


def test_a_large_array_that_may_change_unseen_is_refused() -> None:
    a = np.zeros(1 << 20, np.float32)
    refused(r"a NumPy array of \d+ bytes", lambda x: x + eg.tensor(a).sum(), eg.ones((2,)))


def test_state_made_when_first_needed() -> None:
    """A cache is filled by the first call; the second is traced again, and then no more."""
    cache: dict[str, Any] = {}

    def f(x: Any) -> Any:
        if "scale" not in cache:
            cache["scale"] = 3.0
        return x * cache["scale"]

    g = eg.jit(f)
    for _ in range(4):
        assert values(g(eg.ones((1,)))).tolist() == [3.0]
    assert cache == {"scale": 3.0}
    assert g.count == 1  # the first entry served one call
    cache.clear()
    assert values(g(eg.ones((1,)))).tolist() == [3.0]
    assert cache == {"scale": 3.0}


# --- what is said --------------------------------------------------------------------------------


def test_the_log_says_what_changed(caplog: Any) -> None:
    d = {"k": 2.0}
    f = eg.jit(lambda x: x * d["k"])
    with caplog.at_level(logging.INFO, "everygrad.jit"):
        f(eg.ones((2,)))
        d["k"] = 3.0
        f(eg.ones((2,)))
    assert "d['k'] was 2.0 and is 3.0" in caplog.text


def test_many_kinds_of_call_are_said_once(caplog: Any) -> None:
    d = {"k": 0}
    f = eg.jit(lambda x: x + d["k"])
    with caplog.at_level(logging.WARNING, "everygrad.jit"):
        for k in range(70):
            d["k"] = k
            f(eg.ones((2,)))
    assert caplog.text.count("compiled 65 times") == 1


def test_a_tracer_of_another_tool_goes_on() -> None:
    """A debugger or a coverage tool sees the same calls and lines with and without us."""
    import sys

    def f(x: Any) -> Any:
        y = x * 2.0
        return y + 1.0

    def lines_of(fn: Any) -> list[int]:
        seen = []

        def tool(frame: Any, event: str, arg: Any) -> Any:
            if frame.f_code is f.__code__ and event in ("line", "return"):
                seen.append(frame.f_lineno)
            return tool

        before = sys.gettrace()
        sys.settrace(tool)
        try:
            fn(eg.ones((2,)))
        finally:
            sys.settrace(before)
        return seen

    assert lines_of(eg.jit(f)) == lines_of(f) != []
