"""Functions that read a number from Python, and changes of it: by names, and from containers."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import everygrad as eg

Case = tuple[Callable[[Any], Any], Callable[[float], None]]  # the function; set the number

GLOBAL = 2.0
TABLE = {"rate": 2.0, "nested": {"list": [1.0, 2.0]}}


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
