"""Functions that read a number from Python, and changes of it: by syntax, and from the library."""

from __future__ import annotations

import array
import collections
import contextvars
import copy
import importlib
import itertools
import json
import os
import sys
import types
from typing import Any

import numpy as np

import everygrad as eg
from tests.support.reads.by_classes import Held, Slotted, set_rate
from tests.support.reads.by_names import Case

# --- syntax ---------------------------------------------------------------------------------------


def a_match_of_a_class() -> Case:
    o = Held()

    def f(x: Any) -> Any:
        match o:
            case Held(k=2.0):
                return x * 2.0
            case Held(k=k):
                return x * k
        return x

    return f, o.set


def a_match_of_an_attribute_of_a_class() -> Case:
    o = Held()

    def f(x: Any) -> Any:
        match o:
            case Held(rate=2.0):
                return x * 2.0
        return x

    return f, set_rate


def a_match_of_places() -> Case:
    o = Slotted()

    def f(x: Any) -> Any:
        match o:
            case Slotted(2.0, [*_]):
                return x * 2.0
        return x

    return f, lambda v: setattr(o, "k", v)


def a_match_of_a_sequence() -> Case:
    ks = [1.0, 2.0]

    def f(x: Any) -> Any:
        match ks:
            case [_, 2.0]:
                return x * 2.0
            case [_, k]:
                return x * k
        return x

    return f, lambda v: ks.__setitem__(1, v)


def a_match_inside_a_match() -> Case:
    d = {"a": {"b": [1.0, Held()]}}

    def f(x: Any) -> Any:
        match d:
            case {"a": {"b": [_, Held(list=[_, k])]}}:
                return x * k
        return x

    return f, d["a"]["b"][1].set  # type: ignore[attr-defined]


def a_walrus() -> Case:
    d = {"k": 2.0}
    return lambda x: x * k if (k := d["k"]) else x, lambda v: d.__setitem__("k", v)


def a_condition_in_a_dict_comprehension() -> Case:
    d = {"a": Held(), "b": Held(1.0)}
    return (
        lambda x: x * sum({n: o.k for n, o in d.items() if o.held["k"] > 0}.values()),
        d["a"].set,
    )


def a_condition_in_a_set_comprehension() -> Case:
    p = [Held(), Held(5.0)]
    return lambda x: x * len({o.k for o in p if o.held["k"] > 2.5}), p[0].set


def comprehensions_inside_each_other() -> Case:
    rows = [[Held()], [Held(1.0)]]
    return lambda x: x * sum([sum([o.k for o in row]) for row in rows]), rows[0][0].set


def a_comprehension_used_at_once() -> Case:
    p = [Held()]
    return lambda x: x * [o for o in p][0].k, p[0].set  # noqa: C416, RUF015


def a_comprehension_between_other_operands() -> Case:
    o, p = Held(), [1.0]
    return lambda x: x * (o.get(), [q for q in p])[0].k, o.set  # noqa: C416


def a_chained_comparison() -> Case:
    o = Held()
    return lambda x: x * 2.0 if 1.0 < o.k < 2.5 else x, o.set


def a_star_in_a_list() -> Case:
    ks = [1.0, 2.0]
    return lambda x: x * [0.0, *ks][2], lambda v: ks.__setitem__(1, v)


def stars_in_a_call() -> Case:
    ks, ds = [1.0], {"b": 2.0}
    return lambda x: x * _product(*ks, **ds), lambda v: ds.__setitem__("b", v)


def stars_of_objects_in_a_call() -> Case:
    o = Held()
    ks = [o]
    return lambda x: x * _first(*ks, 1).k, o.set


def _product(a: float, b: float) -> float:
    return a * b


def _first(*args: Any) -> Any:
    return args[0]


def the_rest_of_a_list() -> Case:
    ks = [0.0, 1.0, 2.0]

    def f(x: Any) -> Any:
        _, *rest = ks
        return x * rest[1]

    return f, lambda v: ks.__setitem__(2, v)


def a_key_of_an_f_string() -> Case:
    d, n = {"k2": 2.0}, [2]
    return lambda x: x * d[f"k{n[0]!r}"], lambda v: d.__setitem__("k2", v)


def a_key_by_format() -> Case:
    d, n = {"k2": {"v": 2.0}}, 2
    return lambda x: x * d["k{}".format(n)]["v"], lambda v: d["k2"].__setitem__("v", v)  # noqa: UP032


def a_number_by_format() -> Case:
    d = {"k": 2.0}
    return lambda x: x * float("{k:.3f}".format(**d)), lambda v: d.__setitem__("k", v)


def a_number_by_percent() -> Case:
    d = {"k": 2.0}
    return lambda x: x * float("%(k)f" % d), lambda v: d.__setitem__("k", v)  # noqa: UP031


def a_cell_two_functions_up() -> Case:
    k = Held()

    def outer(x: Any) -> Any:
        n = 0.0

        def inner() -> float:
            nonlocal n
            n += k.k
            return n

        inner()
        return x * inner()

    return outer, k.set


def a_class_made_inside() -> Case:
    o = Held()

    def f(x: Any) -> Any:
        class Inner:
            k = o.k

        return x * Inner.k

    return f, o.set


def a_generator_that_is_sent_to() -> Case:
    o = Held()

    def take() -> Any:
        got = yield o
        yield got.k

    def f(x: Any) -> Any:
        g = take()
        return x * g.send(next(g))

    return f, o.set


def a_generator_that_delegates() -> Case:
    ks = [1.0, 2.0]

    def inner() -> Any:
        got = yield from ks
        return got

    return lambda x: x * sum(list(inner())), lambda v: ks.__setitem__(1, v)


def after_a_finally() -> Case:
    o = Held()

    def f(x: Any) -> Any:
        try:
            raise ValueError(o)
        except ValueError as error:
            return x * error.args[0].k
        finally:
            o.get()

    return f, o.set


def an_import_inside() -> Case:
    module = types.ModuleType("everygrad_reads_module")
    module.K = 2.0  # type: ignore[attr-defined]
    sys.modules["everygrad_reads_module"] = module

    def f(x: Any) -> Any:
        from everygrad_reads_module import K  # type: ignore[import-not-found]

        return x * K

    return f, lambda v: setattr(module, "K", v)


def a_module_by_importlib() -> Case:
    an_import_inside()
    return (
        lambda x: x * importlib.import_module("everygrad_reads_module").K,
        lambda v: setattr(sys.modules["everygrad_reads_module"], "K", v),
    )


def a_module_in_a_dict() -> Case:
    an_import_inside()
    return (
        lambda x: x * sys.modules["everygrad_reads_module"].K,
        lambda v: setattr(sys.modules["everygrad_reads_module"], "K", v),
    )


# --- the standard library and NumPy ---------------------------------------------------------------


def a_chain_of_maps() -> Case:
    d = {"k": 2.0}
    m = collections.ChainMap({}, d)
    return lambda x: x * m["k"], lambda v: d.__setitem__("k", v)


def a_default_dict() -> Case:
    d = collections.defaultdict(lambda: 1.0, k=2.0)
    return lambda x: x * d["k"], lambda v: d.__setitem__("k", v)


def the_order_of_an_ordered_dict() -> Case:
    d = collections.OrderedDict(a=2.0, b=3.0)
    return lambda x: x * next(iter(d.values())), lambda v: d.move_to_end("b", last=v == 2.0)


def the_order_of_a_dict() -> Case:
    d = {"a": 2.0, "b": 3.0}

    def change(v: float) -> None:
        d.clear()
        d.update({"a": 2.0, "b": 3.0} if v == 2.0 else {"b": 3.0, "a": 2.0})

    return lambda x: x * list(d.values())[0], change  # noqa: RUF015


def a_counter() -> Case:
    c = collections.Counter("aab")
    return lambda x: x * c["a"], lambda v: c.__setitem__("a", int(v))


def a_missing_count() -> Case:
    c = collections.Counter("aab")
    return lambda x: x * (c["z"] + 2.0), lambda v: c.__setitem__("z", int(v) - 2)


def the_most_common() -> Case:
    c = collections.Counter("aab")
    return lambda x: x * c.most_common(1)[0][1], lambda v: c.__setitem__("a", int(v))


def an_element_of_an_array() -> Case:
    a = array.array("d", [1.0, 2.0])
    return lambda x: x * a[1], lambda v: a.__setitem__(1, v)


def a_length_of_an_array() -> Case:
    a = array.array("d", [1.0, 2.0])

    def change(v: float) -> None:
        del a[:]
        a.extend([1.0] * int(v))

    return lambda x: x * len(a), change


def a_list_of_an_array() -> Case:
    a = array.array("d", [1.0, 2.0])
    return lambda x: x * a.tolist()[1], lambda v: a.__setitem__(1, v)


def an_element_of_a_memoryview() -> Case:
    b = bytearray([1, 2])
    m = memoryview(b)
    return lambda x: x * m[1], lambda v: b.__setitem__(1, int(v))


def an_element_of_bytes_that_change() -> Case:
    b = bytearray([1, 2])
    return lambda x: x * b[1], lambda v: b.__setitem__(1, int(v))


def an_element_of_a_numpy_array() -> Case:
    a = np.array([1.0, 2.0])
    return lambda x: x * float(a[1]), lambda v: a.__setitem__(1, v)


def the_truth_of_a_numpy_array() -> Case:
    a = np.array([1.0])
    return lambda x: x * 2.0 if a else x, lambda v: a.__setitem__(0, v == 2.0)


def a_numpy_scalar() -> Case:
    d = {"k": np.float32(2.0)}
    return lambda x: x * float(d["k"]), lambda v: d.__setitem__("k", np.float32(v))


def a_view_of_a_numpy_array() -> Case:
    a = np.ones((2, 2))
    row = a[1]
    return lambda x: x * float(row.sum()), lambda v: a.__setitem__((1, 1), v)


def a_view_of_a_dict() -> Case:
    d = {"k": 2.0}
    items = d.items()
    return lambda x: x * [v for _, v in items][0], lambda v: d.__setitem__("k", v)  # noqa: RUF015


def a_proxy_of_a_dict() -> Case:
    d = {"k": 2.0}
    p = types.MappingProxyType(d)
    return lambda x: x * p["k"], lambda v: d.__setitem__("k", v)


VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("VARIABLE", default=2.0)


def a_context_variable() -> Case:
    return lambda x: x * VARIABLE.get(), lambda v: (VARIABLE.set(v), None)[1]


def an_environment_variable_by_getenv() -> Case:
    return (
        lambda x: x * float(os.getenv("EVERYGRAD_TEST_READS", "2.0")),
        lambda v: os.environ.__setitem__("EVERYGRAD_TEST_READS", str(v)),
    )


def an_environment_variable_by_get() -> Case:
    return (
        lambda x: x * float(os.environ.get("EVERYGRAD_TEST_READS", "2.0")),
        lambda v: os.environ.__setitem__("EVERYGRAD_TEST_READS", str(v)),
    )


def a_dict_as_json() -> Case:
    d = {"a": {"k": 2.0}}
    return lambda x: x * json.loads(json.dumps(d))["a"]["k"], lambda v: d["a"].__setitem__("k", v)


def a_copy_of_a_list() -> Case:
    ks = [[1.0], [2.0]]
    return lambda x: x * copy.copy(ks)[1][0], lambda v: ks[1].__setitem__(0, v)


def a_chain_of_lists() -> Case:
    ks, more = [1.0], [2.0]
    return lambda x: x * sum(itertools.chain(ks, more)), lambda v: more.__setitem__(0, v)


def a_reversed_list() -> Case:
    p = [Held(1.0), Held()]
    return lambda x: x * next(reversed(p)).k, p[1].set


def a_minimum_by_a_key() -> Case:
    p = [Held(2.5), Held()]
    return lambda x: x * min(p, key=lambda o: o.k).k, p[1].set


def any_and_all() -> Case:
    ks = [2.0, 2.0]
    return (
        lambda x: x * 2.0 if all(k < 2.5 for k in ks) and any(ks) else x,
        lambda v: ks.__setitem__(1, v),
    )


def a_slice_of_objects() -> Case:
    p = [Held(1.0), Held()]
    return lambda x: x * p[1:][0].k, p[1].set


def a_union_of_dicts() -> Case:
    a, b = {"k": Held()}, {"j": 1}
    return lambda x: x * (a | b)["k"].k, a["k"].set  # type: ignore[operator]


def a_sum_of_lists() -> Case:
    a, b = [Held(1.0)], [Held()]
    return lambda x: x * (a + b)[1].k, b[0].set


def a_subset() -> Case:
    s = {1.0, 2.0}

    def change(v: float) -> None:
        s.clear()
        s.update({1.0, v})

    return lambda x: x * 2.0 if {2.0} <= s else x, change


def a_bound_method_kept_in_a_dict() -> Case:
    o = Held()
    d = {"f": o.get}
    return lambda x: x * d["f"]().k, o.set


def an_index_of_a_list() -> Case:
    ks = [2.0, 3.0]
    return lambda x: x * (ks.index(3.0) + 1.0), lambda v: ks.__setitem__(slice(None), [5.0 - v, v])


def a_code_of_a_function() -> Case:
    def a(x: Any) -> Any:
        return x * 2.0

    def b(x: Any) -> Any:
        return x * 3.0

    codes = {2.0: a.__code__, 3.0: b.__code__}

    def called(x: Any) -> Any:
        return x * 1.0

    return lambda x: called(x), lambda v: setattr(called, "__code__", codes[v])


def a_default_that_is_replaced() -> Case:
    def called(x: Any, k: float = 2.0) -> Any:
        return x * k

    return lambda x: called(x), lambda v: setattr(called, "__defaults__", (v,))


def a_keyword_default_that_is_replaced() -> Case:
    def called(x: Any, *, k: float = 2.0) -> Any:
        return x * k

    return lambda x: called(x), lambda v: setattr(called, "__kwdefaults__", {"k": v})


def the_class_of_an_object() -> Case:
    class A:
        def scaled(self, x: Any) -> Any:
            return x * 2.0

    class B:
        def scaled(self, x: Any) -> Any:
            return x * 3.0

    o = A()
    kinds = {2.0: A, 3.0: B}
    return lambda x: o.scaled(x), lambda v: setattr(o, "__class__", kinds[v])


def a_default_of_a_library_setting() -> Case:
    o = Held()
    return lambda x: eg.where(x > 0, x, 0.0) * vars(o)["k"], o.set
