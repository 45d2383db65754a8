"""Functions that read a number from Python, and changes of it: from arrays and memory, from
settings of the process, and from what everygrad's own objects hold."""

from __future__ import annotations

import collections
import ctypes
import functools
import operator
import os
import sys
from typing import Any

import numpy as np
import torch

import everygrad as eg
from everygrad import distributions, nn, optim
from tests.support.reads.by_classes import Held
from tests.support.reads.by_names import Case

# --- what tensors are given -----------------------------------------------------------------------


def an_index_that_is_a_list() -> Case:
    ks = [0, 1]
    return lambda x: x[ks], lambda v: ks.__setitem__(0, int(v) - 2)


def an_index_that_is_an_array() -> Case:
    a = np.array([0, 1])
    return lambda x: (x * 2)[a], lambda v: a.__setitem__(0, int(v) - 2)


def a_list_in_an_index() -> Case:
    ks = [0, 1]
    return lambda x: x[(ks,)], lambda v: ks.__setitem__(0, int(v) - 2)


def an_array_that_is_written() -> Case:
    a = np.array([0.0, 1.0, 2.0], np.float32)

    def f(x: Any) -> Any:
        y = x * 1
        y[:] = a
        return y

    return f, lambda v: a.__setitem__(0, v)


def an_index_that_is_written_to() -> Case:
    ks = [0, 1]

    def f(x: Any) -> Any:
        y = x * 1
        y[ks] = 7.0
        return y

    return f, lambda v: ks.__setitem__(0, int(v) - 2)


# --- arrays and memory ----------------------------------------------------------------------------


def an_array_of_objects() -> Case:
    d = {"k": 2.0}
    a = np.array([d], dtype=object)
    return lambda x: x * a[0]["k"], lambda v: d.__setitem__("k", v)


def a_field_of_a_record() -> Case:
    a = np.zeros(1, [("k", "f8")])
    r = a[0]
    r["k"] = 2.0
    return lambda x: x * float(r["k"]), lambda v: a["k"].__setitem__(0, v)


def an_attribute_of_a_record_array() -> Case:
    a: Any = np.rec.array([(2.0,)], dtype=[("k", "f8")])
    return lambda x: x * float(a.k[0]), lambda v: a.k.__setitem__(0, v)


def a_masked_array() -> Case:
    a: Any = np.ma.array([2.0, 5.0], mask=[False, False])
    return (
        lambda x: x * float(a.sum()),
        lambda v: a.__setitem__(1, 5.0 if v == 2.0 else np.ma.masked),
    )


def an_attribute_of_an_array() -> Case:
    a: Any = np.zeros(2).view(type("A", (np.ndarray,), {}))
    a.k = 2.0
    return lambda x: x * a.k, lambda v: setattr(a, "k", v)


def a_method_of_an_array_kept() -> Case:
    a = np.array([2.0])
    total = a.sum
    return lambda x: x * float(total()), lambda v: a.__setitem__(0, v)


def a_polynomial_of_numpys() -> Case:
    p = np.poly1d([1.0, 2.0])
    return lambda x: x * p(0), lambda v: p.coeffs.__setitem__(1, v)


def a_number_of_torchs() -> Case:
    t = torch.tensor(2.0)
    return lambda x: x * float(t), lambda v: t.fill_(v) and None


def an_element_of_torchs() -> Case:
    t = torch.tensor([2.0])
    return lambda x: x * t[0].item(), lambda v: t.fill_(v) and None


def a_tensor_of_torchs() -> Case:
    t = torch.tensor([2.0])
    return lambda x: x * eg.tensor(t), lambda v: t.fill_(v) and None


class _Struct(ctypes.Structure):
    _fields_ = [("k", ctypes.c_double)]  # as ctypes wants it


def a_field_of_a_c_struct() -> Case:
    s = _Struct(2.0)
    return lambda x: x * s.k, lambda v: setattr(s, "k", v)


def an_element_of_a_c_array() -> Case:
    a = (ctypes.c_double * 2)(2.0, 1.0)
    return lambda x: x * a[0], lambda v: a.__setitem__(0, v)


def what_a_c_pointer_points_at() -> Case:
    p = ctypes.pointer(ctypes.c_double(2.0))
    return lambda x: x * p[0], lambda v: p.__setitem__(0, v)


# --- settings of the process ----------------------------------------------------------------------


def an_environment_variable_by_expandvars() -> Case:
    return (
        lambda x: x * float(os.path.expandvars("${EVERYGRAD_TEST_EXPANDED}")),
        lambda v: os.environ.__setitem__("EVERYGRAD_TEST_EXPANDED", str(v)),
    )


def a_limit_of_the_interpreter() -> Case:
    before = sys.getswitchinterval()
    return lambda x: x * round(sys.getswitchinterval() / before), lambda v: sys.setswitchinterval(
        before * (1 if v == 2.0 else v)
    )


def how_numpy_takes_errors() -> Case:
    before = np.geterr()["under"]
    return (
        lambda x: x * (2.0 if np.geterr()["under"] == before else 3.0),
        lambda v: np.seterr(under=before if v == 2.0 else "print") and None,
    )


def a_setting_of_ours() -> Case:
    before = eg.config.code_bytes
    return lambda x: x * (eg.config.code_bytes - before + 2.0), lambda v: setattr(
        eg.config, "code_bytes", before + int(v) - 2
    )


# --- what our own objects hold --------------------------------------------------------------------


class _Scaled(nn.Module):
    def __init__(self) -> None:
        self.k = 2.0
        self.inner = nn.Identity()
        self.obj = Held()

    def forward(self, x: Any) -> Any:
        return x * self.k


def _set_forward(kind: Any) -> Any:
    return lambda v: setattr(kind, "forward", lambda self, x: x * v)


def a_forward_that_a_class_gets() -> Case:
    kind: Any = type("M", (nn.Module,), {"forward": lambda self, x: x * 2.0})
    m = kind()
    return lambda x: m(x), _set_forward(kind)


def an_attribute_that_a_module_gets_later() -> Case:
    m = _Scaled()
    return (
        lambda x: x * (3.0 if hasattr(m, "late") else 2.0),
        lambda v: setattr(m, "late", v) if v != 2.0 else vars(m).pop("late", None),
    )


def an_attribute_of_a_module_by_vars() -> Case:
    m = _Scaled()
    return lambda x: x * vars(m)["k"], lambda v: setattr(m, "k", v)


def an_attribute_of_a_module_by_attrgetter() -> Case:
    m = _Scaled()
    return lambda x: x * operator.attrgetter("obj.k")(m), m.obj.set


def an_attribute_of_a_child() -> Case:
    m = _Scaled()
    return lambda x: x * sum(getattr(c, "k", 2.0) for c in m.children()), lambda v: setattr(
        m.inner, "k", v
    )


def how_many_modules_there_are() -> Case:
    m = _Scaled()
    return lambda x: x * len(list(m.modules())), lambda v: setattr(
        m, "more", None if v == 2.0 else nn.Identity()
    )


def the_modules_of_a_list() -> Case:
    held = nn.ModuleList([nn.LeakyReLU(2.0)])

    def f(x: Any) -> Any:
        for m in held:
            x = m(-x)
        return x

    return f, lambda v: held.__setitem__(0, nn.LeakyReLU(v))


def a_module_of_a_dict() -> Case:
    held = nn.ModuleDict({"a": nn.LeakyReLU(2.0)})
    return lambda x: held["a"](-x), lambda v: held.__setitem__("a", nn.LeakyReLU(v))


def an_attribute_of_a_kind_of_tensor() -> Case:
    kind: Any = type("P", (nn.Parameter,), {"k": 2.0})
    p = kind(eg.ones((3,)))
    return lambda x: x * p.k, lambda v: setattr(kind, "k", v)


def a_method_that_tensors_are_given() -> Case:
    def change(v: float) -> None:
        eg.Tensor.everygrad_reads = lambda self: self * v  # type: ignore[attr-defined]

    change(2.0)
    return lambda x: x.everygrad_reads(), change


def a_mean_of_a_distribution() -> Case:
    d = distributions.Normal(2.0, 1.0)
    return lambda x: d.log_prob(x), lambda v: setattr(d, "loc", eg.tensor(v))


def an_attribute_of_a_data_set() -> Case:
    kind: Any = type("D", (eg.data.Dataset,), {"__slots__": ("k",)})
    d = kind()
    d.k = 2.0
    return lambda x: x * d.k, lambda v: setattr(d, "k", v)


def what_a_partial_gives_a_hook() -> Case:
    d = {"k": 2.0}
    m = nn.Identity()
    m.register_forward_hook(functools.partial(lambda c, *args: args[2] * c["k"], d))
    return lambda x: m(x), lambda v: d.__setitem__("k", v)


def what_a_partial_gives_a_hook_of_a_tensor() -> Case:
    d = [2.0]
    w = eg.ones((3,)).requires_grad_()
    w.register_hook(functools.partial(lambda c, g: g * c[0], d))

    def f(x: Any) -> Any:
        w.grad = None
        (w * x).sum().backward()
        return w.grad * 1.0

    return f, lambda v: d.__setitem__(0, v)


def settings_of_a_group_by_update() -> Case:
    w = eg.ones((3,)).requires_grad_()
    opt = optim.SGD([w], lr=0.1)
    opt.param_groups[0]["own"] = 2.0
    return lambda x: x * opt.param_groups[0]["own"], lambda v: opt.param_groups[0].update(own=v)


def a_derivative_of_a_compiled_function() -> Case:
    d = {"k": 2.0}
    return eg.grad(eg.jit(lambda x: (x * x * d["k"]).sum())), lambda v: d.__setitem__("k", v)


def what_wraps_a_compiled_function() -> Case:
    d = {"k": 2.0}
    inner = eg.jit(lambda x: x * d["k"])
    return functools.wraps(inner)(lambda x: inner(x) * 2.0), lambda v: d.__setitem__("k", v)


def a_missing_item_of_a_users_dict() -> Case:
    d: Any = collections.UserDict()
    return (
        lambda x: x * d.get("k", 2.0),
        lambda v: d.pop("k", None) if v == 2.0 else d.__setitem__("k", v),
    )
