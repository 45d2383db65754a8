"""What is saved is loaded: every dtype and layout, every container, and by other readers too."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import everygrad as eg
from everygrad import dtypes
from everygrad.errors import ArgumentError, DtypeError, MissingFileError, TraceError

SHAPES = ((), (1,), (0,), (3, 0, 2), (5,), (2, 3, 4), (1, 1, 1, 1, 1, 7))
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.T,
    "every second": lambda x: x[::2],
    "reversed": lambda x: x[::-1],
    "a column": lambda x: x[:, 1],
    "a corner": lambda x: x[1:3, 1:3],
    "broadcast": lambda x: np.broadcast_to(x[0], (5, *x[0].shape)) if isinstance(x, np.ndarray)
    else eg.broadcast_to(x[0], (5, *x[0].shape)),
    "one element": lambda x: x[2, 3],
}  # fmt: skip
FLOAT8 = tuple(d for d in vars(ml_dtypes).values() if getattr(d, "__name__", "") in (
    "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"
))  # fmt: skip


def values(dtype: dtypes.DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Any bits at all, NaNs with payloads among them."""
    rng = np.random.default_rng(math.prod(shape) + 7)
    if dtype is dtypes.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    return raw.view(dtype.np).reshape(shape)


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(x.numpy() if isinstance(x, eg.Tensor) else x).tobytes()


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_dtype_and_shape(tmp_path: Path, dtype: dtypes.DType, mapped: bool) -> None:
    arrays = {str(shape): values(dtype, shape) for shape in SHAPES}
    given = {name: eg.tensor(a) for name, a in arrays.items()}
    eg.save(tmp_path / "x", {"tensors": given, "arrays": arrays})
    found = eg.load(tmp_path / "x", mmap=mapped)
    assert list(found["tensors"]) == list(arrays)
    for name, a in arrays.items():
        t, array = found["tensors"][name], found["arrays"][name]
        assert isinstance(t, eg.Tensor)
        assert isinstance(array, np.ndarray)
        assert (t.dtype, t.shape) == (dtype, a.shape)
        assert (array.dtype, array.shape) == (dtype.np, a.shape)
        assert bits(t) == bits(array) == a.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(tmp_path: Path, layout: str) -> None:
    base = np.arange(24.0).reshape(4, 6)
    array = np.asarray(LAYOUTS[layout](base))
    given = {"tensor": LAYOUTS[layout](eg.tensor(base)), "array": array}
    given["swapped"] = array.astype(">f8")
    eg.save(tmp_path / "x", given)
    found = eg.load(tmp_path / "x")
    for name in ("tensor", "array", "swapped"):
        np.testing.assert_array_equal(np.asarray(found[name]), array)
        assert found[name].shape == array.shape


def test_devices(tmp_path: Path, device: str) -> None:
    state = {f"p{i}": eg.randn((3, i), device=device) for i in range(5)}
    eg.save(tmp_path / "x", state)
    here, there = eg.load(tmp_path / "x"), eg.load(tmp_path / "x", device=device)
    for name, t in state.items():
        assert (here[name].device, there[name].device) == ("cpu", t.device)
        np.testing.assert_array_equal(here[name].numpy(), t.numpy())
        np.testing.assert_array_equal(there[name].numpy(), t.numpy())


@dataclasses.dataclass
class Settings:
    rate: float
    weight: Any = None
    parts: list[Any] = dataclasses.field(default_factory=list)


Point = namedtuple("Point", ["x", "y"])

SAME: dict[str, Any] = {  # what comes back as it was
    "none": None,
    "booleans": [True, False],
    "whole numbers": [0, -1, 2**63, -(2**200)],
    "floats": [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf],
    "complex": [1.5 - 2j, complex(math.inf, -0.0)],
    "text": ["", 'ä\n"\\ \x00 \U0001f600', "\ud800"],
    "bytes": b"\x00\xff",
    "tuples": ((), (1, (2, [3]))),
    "dicts": {"a": {}, "dict": {"tensor": "x"}, "state": 1, "of": 2},
    "keys": {1: "a", -2: "b", None: 3, (1, "x"): 4, False: 5, 2.5: {3: 4}},
    "dtype": eg.bfloat16,
    "alone": 7,
}
OTHER: dict[str, tuple[Any, Any]] = {  # what is saved, and what comes back
    "ordered": (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    "named tuple": (Point(1, "y"), (1, "y")),
    "dataclass": (Settings(0.5, parts=[1]), {"rate": 0.5, "weight": None, "parts": [1]}),
    "numpy numbers": ([np.float32(0.1), np.int8(3)], [float(np.float32(0.1)), 3]),
}
PLAIN = {name: (value, value) for name, value in SAME.items()} | OTHER


@pytest.mark.parametrize("name", PLAIN)
def test_plain_values(tmp_path: Path, name: str) -> None:
    given, wanted = PLAIN[name]
    eg.save(tmp_path / "x", given)
    found = eg.load(tmp_path / "x")
    assert repr(found) == repr(wanted)  # types, order and the sign of zero too


def test_nan_is_nan(tmp_path: Path) -> None:
    eg.save(tmp_path / "x", {"loss": math.nan})
    assert math.isnan(eg.load(tmp_path / "x")["loss"])


def test_a_tensor_alone(tmp_path: Path) -> None:
    eg.save(tmp_path / "x", eg.arange(3))
    assert eg.load(tmp_path / "x").tolist() == [0, 1, 2]


def test_tied_tensors_stay_tied(tmp_path: Path) -> None:
    class Tied(eg.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = eg.nn.Embedding(5, 3)
            self.head = eg.nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

    model, array = Tied(), np.ones(3)
    eg.save(tmp_path / "x", {"model": model, "w": model.head.weight, "arrays": [array, array]})
    found = eg.load(tmp_path / "x")
    assert found["model"]["embedding.weight"] is found["model"]["head.weight"] is found["w"]
    assert found["arrays"][0] is found["arrays"][1]
    assert len(safetensors.numpy.load_file(tmp_path / "x")) == 2
    other = Tied()
    eg.load(tmp_path / "x", into={"model": other, "w": eg.zeros((5, 3)), "arrays": [array, array]})
    assert other.head.weight is other.embedding.weight
    np.testing.assert_array_equal(
        other.head.weight.detach().numpy(), model.head.weight.detach().numpy()
    )


def test_names_that_collide(tmp_path: Path) -> None:
    given = {"a.b": eg.ones(1), "a": {"b": eg.zeros(2)}, "__metadata__": eg.ones(3), "": eg.ones(4)}
    eg.save(tmp_path / "x", given)
    found = eg.load(tmp_path / "x")
    assert found["a.b"].shape == (1,)
    assert found["a"]["b"].shape == (2,)
    assert found["__metadata__"].shape == (3,)
    assert found[""].shape == (4,)
    assert len(safetensors.numpy.load_file(tmp_path / "x")) == 4


# --- beside the safetensors package --------------------------------------------------------------


def test_the_package_reads_what_we_write(tmp_path: Path) -> None:
    model = eg.nn.Sequential(eg.nn.Linear(3, 4), eg.nn.BatchNorm1d(4))
    eg.save(tmp_path / "x", model)
    theirs = safetensors.numpy.load_file(tmp_path / "x")
    ours = {k: v.numpy() for k, v in model.state_dict().items()}
    assert theirs.keys() == ours.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(theirs[name], array, strict=True)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_pytorch_reads_what_we_write(tmp_path: Path, dtype: dtypes.DType) -> None:
    array = values(dtype, (3, 4))
    eg.save(tmp_path / "x", {"a": eg.tensor(array), "odd": eg.ones((3,)).astype("bool")})
    theirs = safetensors.torch.load_file(tmp_path / "x")["a"]
    assert theirs.contiguous().view(torch.uint8).numpy().tobytes() == array.tobytes()
    if dtype is dtypes.complex128:  # the format has none: pairs
        assert (theirs.dtype, theirs.shape) == (torch.float64, (3, 4, 2))
    else:
        assert str(theirs.dtype) == f"torch.{dtype}"


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_we_read_what_the_package_writes(tmp_path: Path, mapped: bool) -> None:
    """Odd sizes before wide items: nothing there need be aligned when it is mapped."""
    names = [str(d) for d in dtypes.ALL if d is not dtypes.complex128]
    given = {n: torch.arange(-3, 4).to(getattr(torch, n)) for n in names}
    given |= {
        "f8": torch.ones(3).to(torch.float8_e5m2),
        "0d": torch.tensor(2.5),
        "e": torch.ones(0, 3),
    }
    safetensors.torch.save_file(given, tmp_path / "x", metadata={"made by": "another"})
    found = eg.load(tmp_path / "x", mmap=mapped)
    assert found.keys() == given.keys()
    for name, t in given.items():
        assert str(found[name].dtype) == str(t.dtype).removeprefix("torch.")
        assert found[name].shape == tuple(t.shape)
        raw = t.view(torch.uint8) if t.ndim else t.reshape(1).view(torch.uint8)
        assert bits(found[name]) == raw.numpy().tobytes()


@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda d: d.__name__)
def test_float8_comes_as_arrays(tmp_path: Path, dtype: Any) -> None:
    array = np.array([0.5, 1.0, 2.0], dtype)
    eg.save(tmp_path / "x", {"scale": array})
    found = eg.load(tmp_path / "x")["scale"]
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, array, strict=True)


# --- refusals ------------------------------------------------------------------------------------

_CYCLE: list[Any] = []
_CYCLE.append(_CYCLE)
_DEEP: list[Any] = []
for _ in range(200):
    _DEEP = [_DEEP]

REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "a set": ({"seen": {1, 2}}, ArgumentError, "save: 'seen' is a set, which has no order"),
    "a function": ([print], ArgumentError, "save: '0' is a builtin_function_or_method"),
    "a class": (eg.nn.Linear, ArgumentError, "save: the object is a type"),
    "an object": ({"a": [object()]}, ArgumentError, r"'a.0' is a object; what can be saved: tens"),
    "a key": ({object(): 1}, ArgumentError, "has the key <object object"),
    "a long key": ({2**60: 1}, ArgumentError, "has the key 1152921504606846976"),
    "a cycle": (_CYCLE, ArgumentError, "save: '0' holds itself"),
    "depth": (_DEEP, ArgumentError, "nested deeper than 100"),
    "objects": (np.array([None]), ArgumentError, "an array of object"),
    "text": (np.array(["a"]), ArgumentError, "an array of <U1"),
    "dates": (np.array(["2020-01-01"], "M8[D]"), ArgumentError, "an array of datetime64"),
    "long doubles": (np.ones(2, np.longdouble), DtypeError, "safetensors has no dtype for NumPy's"),
    "a huge number": (1 << 5000, ArgumentError, "more than 4096 bits"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(tmp_path: Path, name: str) -> None:
    obj, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        eg.save(tmp_path / "x", obj)
    assert list(tmp_path.iterdir()) == []


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="save: a path is text or a Path, got dict"):
        eg.save({"a": 1}, 3)
    with pytest.raises(MissingFileError, match="save: there is no folder"):
        eg.save(tmp_path / "no" / "x", 1)
    eg.save(tmp_path / "model.safetensors", 1)
    with pytest.raises(
        MissingFileError, match=r"load: there is no file .*there is 'model.safetens"
    ):
        eg.load(tmp_path / "model.safetensor")
    with pytest.raises(FileNotFoundError):
        eg.load(tmp_path / "none")


def test_inside_jit_values_are_not_known(tmp_path: Path) -> None:
    def f(x: eg.Tensor) -> eg.Tensor:
        eg.save(tmp_path / "x", x)
        return x + 1

    with pytest.raises(TraceError, match="save"):
        eg.jit(f)(eg.ones(3))
    assert list(tmp_path.iterdir()) == []


def test_calls_in_pytorchs_words(tmp_path: Path) -> None:
    eg.save({"a": eg.ones(2)}, str(tmp_path / "x.pt"))
    for words in ({"map_location": "cpu"}, {"weights_only": True}, {"map_location": None}):
        assert eg.load(tmp_path / "x.pt", **words)["a"].tolist() == [1.0, 1.0]
    for words in ({"map_location": "cpu", "device": "cpu"}, {"map_location": lambda s, _: s}):
        with pytest.raises(ArgumentError, match="load: map_location is the name of a device"):
            eg.load(tmp_path / "x.pt", **words)
