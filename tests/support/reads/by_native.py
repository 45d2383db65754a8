"""Functions that read a number from Python, and changes of it: from what objects written in C keep,
and by ways past what objects notice."""

from __future__ import annotations

import collections
import decimal
import enum
import functools
import gc
import io
import operator
import os
import signal
import sys
import tempfile
import threading
import types
import weakref
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np
import torch

import everygrad as eg
from everygrad import nn
from tests.support.reads.by_names import Case

# --- written past __setattr__ ---------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self) -> None:
        self.scale = 2.0

    def forward(self, x: Any) -> Any:
        return x * self.scale


def an_attribute_of_a_module_by_its_dict() -> Case:
    m = Scaled()
    return lambda x: x * m.scale, lambda v: m.__dict__.__setitem__("scale", v)


def an_attribute_of_a_module_by_object_setattr() -> Case:
    m = Scaled()
    return lambda x: m(x), lambda v: object.__setattr__(m, "scale", v)


def an_attribute_of_a_module_in_a_sequence_by_its_dict() -> Case:
    m = nn.Sequential(Scaled())
    return lambda x: m(x), lambda v: vars(m[0]).update(scale=v)


def what_a_partial_is_given_later() -> Case:
    g = functools.partial(lambda k: k, 2.0)

    def change(v: float) -> None:
        g.__setstate__((g.func, (v,), {}, None))  # type: ignore[attr-defined]

    return lambda x: x * g(), change


def a_default_of_a_named_tuple() -> Case:
    kind: Any = collections.namedtuple("kind", "a k", defaults=[2.0])
    return lambda x: x * kind(1).k, lambda v: setattr(kind.__new__, "__defaults__", (v,))


# --- what objects written in C keep ---------------------------------------------------------------


def a_text_in_memory() -> Case:
    held = io.StringIO()

    def change(v: float) -> None:
        held.seek(0)
        held.truncate()
        held.write(str(v))

    change(2.0)
    return lambda x: x * float(held.getvalue()), change


def bytes_in_memory() -> Case:
    held = io.BytesIO(b"\x02")

    def change(v: float) -> None:
        held.seek(0)
        held.write(bytes([int(v)]))

    return lambda x: x * float(held.getbuffer()[0]), change


def a_place_in_a_text_in_memory() -> Case:
    held = io.StringIO("abcdef")
    held.seek(2)
    return lambda x: x * held.tell(), lambda v: held.seek(int(v)) and None


def digits_of_decimal_numbers() -> Case:
    def change(v: float) -> None:
        decimal.getcontext().prec = 28 if v == 2.0 else 3

    return lambda x: x * float(decimal.Decimal(1) / decimal.Decimal(7)), change


def digits_of_a_context() -> Case:
    context = decimal.Context(prec=5)
    one, seven = decimal.Decimal(1), decimal.Decimal(7)
    return (
        lambda x: x * float(context.divide(one, seven)),
        lambda v: setattr(context, "prec", int(v) + 3),
    )


def digits_in_a_local_context() -> Case:
    context = decimal.Context(prec=5)

    def f(x: Any) -> Any:
        with decimal.localcontext(context):
            return x * float(decimal.Decimal(1) / decimal.Decimal(7))

    return f, lambda v: setattr(context, "prec", int(v) + 3)


def how_numpy_prints() -> Case:
    a = np.array([1 / 7])

    def change(v: float) -> None:
        np.set_printoptions(precision=8 if v == 2.0 else 3)

    return lambda x: x * float(str(a)[1:-1]), change


def how_numpy_prints_in_a_text() -> Case:
    a = np.array([1 / 7])

    def change(v: float) -> None:
        np.set_printoptions(precision=8 if v == 2.0 else 3)

    return lambda x: x * float(f"{a}"[1:-1]), change


def a_length_of_a_queue() -> Case:
    q: SimpleQueue[int] = SimpleQueue()

    def change(v: float) -> None:
        while not q.empty():
            q.get()
        for k in range(int(v)):
            q.put(k)

    change(2.0)
    return lambda x: x * q.qsize(), change


def whether_a_lock_is_held() -> Case:
    lock = threading.Lock()

    def change(v: float) -> None:
        if v == 2.0 and lock.locked():
            lock.release()
        elif v != 2.0:
            lock.acquire(blocking=False)

    return lambda x: x * (3.0 if lock.locked() else 2.0), change


def how_full_a_cache_is() -> Case:
    cached = functools.cache(lambda k: k)

    def change(v: float) -> None:
        cached.cache_clear()
        for k in range(int(v)):
            cached(k)

    change(2.0)
    return lambda x: x * cached.cache_info().currsize, change


# --- what functions written in C look into --------------------------------------------------------


def an_attribute_that_sorts() -> Case:
    a, b = types.SimpleNamespace(k=2.0, w=1.0), types.SimpleNamespace(k=2.5, w=5.0)
    return (
        lambda x: x * sorted([a, b], key=operator.attrgetter("k"))[0].w,
        lambda v: setattr(a, "k", v),
    )


class _Kind(enum.Enum):
    A = 1
    B = 2


_Kind.A.k = 2.0  # type: ignore[attr-defined]


def an_attribute_of_a_member_by_name() -> Case:
    return lambda x: x * _Kind["A"].k, lambda v: setattr(_Kind.A, "k", v)  # type: ignore[attr-defined]


def an_attribute_of_a_member_by_value() -> Case:
    return lambda x: x * _Kind(1).k, lambda v: setattr(_Kind.A, "k", v)  # type: ignore[attr-defined]


def an_attribute_that_a_metaclass_gives() -> Case:
    class Meta(type):
        k = 2.0

        def __call__(cls) -> Any:
            made: Any = super().__call__()
            made.k = Meta.k
            return made

    class Plain(metaclass=Meta):
        k: float

    return lambda x: x * Plain().k, lambda v: setattr(Meta, "k", v)


def a_setting_of_torchs() -> Case:
    def change(v: float) -> None:
        torch.set_default_dtype(torch.float32 if v == 2.0 else torch.float64)

    return lambda x: x * torch.ones(1).element_size(), change


def whether_torch_records() -> Case:
    def change(v: float) -> None:
        torch.set_grad_enabled(v == 2.0)

    return lambda x: x * (2.0 if torch.is_grad_enabled() else 3.0), change


_T = TypeVar("_T")


class _Generic(Generic[_T]):
    k = 2.0


def an_attribute_of_a_class_with_types() -> Case:
    return lambda x: x * _Generic[int].k, lambda v: setattr(_Generic, "k", v)


# --- what is outside of the process ---------------------------------------------------------------


def whether_a_file_is_there() -> Case:
    path = Path(tempfile.mkdtemp()) / "file"

    def change(v: float) -> None:
        if v == 2.0:
            path.unlink(missing_ok=True)
        else:
            path.touch()

    return lambda x: x * (3.0 if os.path.exists(path) else 2.0), change


def whether_a_path_is_there() -> Case:
    path = Path(tempfile.mkdtemp()) / "file"

    def change(v: float) -> None:
        if v == 2.0:
            path.unlink(missing_ok=True)
        else:
            path.touch()

    return lambda x: x * (3.0 if path.exists() else 2.0), change


def a_tensor_of_a_text_in_memory() -> Case:
    held = io.StringIO()

    def change(v: float) -> None:
        held.seek(0)
        held.truncate()
        held.write(f"{v} 1.0")

    change(2.0)
    return lambda x: x * eg.tensor([float(k) for k in held.getvalue().split()])[0], change


class _Node:
    pass


def what_a_weak_reference_is_to() -> Case:
    """Whether there is anything; the case itself must not hold it."""
    held: list[Any] = []
    parent: list[Any] = [None]

    def change(v: float) -> None:
        held[:] = [_Node()]
        parent[0] = weakref.ref(held[0])
        if v == 3.0:
            held.clear()

    return lambda x: x * (3.0 if parent[0]() is None else 2.0), change


def what_a_weak_reference_is_to_and_no_more() -> Case:
    """One reference, whose object goes and cannot come again."""
    held = [_Node()]
    parent = weakref.ref(held[0])
    names = {"one": parent}

    def change(v: float) -> None:
        if v == 3.0:
            held.clear()
        elif not held:  # another reference under the same name
            held.append(_Node())
            names["one"] = weakref.ref(held[0])

    return lambda x: x * (3.0 if names["one"]() is None else 2.0), change


def how_signals_are_handled() -> Case:
    def change(v: float) -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN if v == 3.0 else signal.SIG_DFL)

    ignored = signal.SIG_IGN
    return lambda x: x * (3.0 if signal.getsignal(signal.SIGUSR2) == ignored else 2.0), change


def when_garbage_is_collected() -> Case:
    def change(v: float) -> None:
        gc.set_threshold(700 if v == 2.0 else 701, 10, 10)

    return lambda x: x * (gc.get_threshold()[0] - 698.0), change


def what_a_library_has_not() -> Case:
    def change(v: float) -> None:
        if v == 3.0:
            sys.everygrad_test = v  # type: ignore[attr-defined]
        elif hasattr(sys, "everygrad_test"):
            del sys.everygrad_test

    return lambda x: x * (3.0 if hasattr(sys, "everygrad_test") else 2.0), change
