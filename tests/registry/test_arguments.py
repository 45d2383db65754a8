"""What ops take, one rule for all of them: tensors, and in their place NumPy arrays and numbers;
anything else, and a parameter of a wrong Python type, is refused by name. Over the registry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn
from everygrad.errors import EverygradError
from everygrad.nn import functional as F
from everygrad.ops.record.spec import REGISTRY, Sample
from tests.support.checks import (
    WITH_SAMPLES,
    all_close,
    call,
    is_narrow,
    mapped,
    samples_of,
    to_tensor,
)

PUBLIC = [n for n in WITH_SAMPLES if REGISTRY[n].namespace != "internal"]
# what is drawn differs from call to call; what reads NumPy arrays gives what has no values
DRAWN = {"dropout", "rrelu"}


class Odd:
    """An object that no op takes."""

    def __repr__(self) -> str:
        return "odd"


# what a parameter says that it takes -> what is something else
WRONG: dict[str, list[Any]] = {
    "Tensor": ["x", Odd(), None, {}, [1.0]],
    "Tensor | None": ["x", Odd(), {}],
    "Sequence[Tensor]": ["x", 3, Odd(), ["x"], [Odd()]],
    "int": ["x", 1.5, None, Odd()],
    "int | None": ["x", 1.5, Odd()],
    "float": ["x", None, Odd(), [1.0]],
    "float | None": ["x", Odd()],
    "bool": ["x", None, 2.5, Odd()],
    "bool | None": ["x", Odd()],
    "str": [3, None, Odd()],
    "Sequence[int]": ["x", 1.5, Odd(), [1.5]],
    "Axis": ["x", 1.5, Odd()],
    "Axes": ["x", 1.5, Odd()],
    "Any": [Odd()],
}


def annotated(p: inspect.Parameter) -> str:
    found = p.annotation
    return found if isinstance(found, str) else getattr(found, "__name__", str(found))


def wrong_calls(name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls of an op with one argument of a wrong type each, as a function and as a method."""
    op = REGISTRY[name]
    signature = inspect.signature(inspect.unwrap(op.function))
    one = next(samples_of(op, "cpu"))
    given = signature.bind(*mapped(one.args, eg.tensor), **mapped_values(one))
    for i, p in enumerate(signature.parameters.values()):
        if p.kind is p.VAR_KEYWORD:  # PyTorch's names of the others: tests/api/test_aliases.py
            continue
        if p.kind is p.VAR_POSITIONAL:
            if annotated(p) == "Tensor":
                args = (*given.args[:i], given.args[i], Odd())
                yield f"{name}: *{p.name}", lambda a=args: op.function(*a)  # type: ignore[misc]
            continue
        for wrong in WRONG.get(annotated(p), []):
            if wrong is None and p.default is None:
                continue
            bound = signature.bind(*given.args, **given.kwargs)
            bound.apply_defaults()
            bound.arguments[p.name] = wrong
            args, kwargs = bound.args, bound.kwargs
            yield f"{name}: {p.name}={wrong!r}", lambda a=args, k=kwargs: op.function(*a, **k)  # type: ignore[misc]
            if op.methods and i and isinstance(args[0], eg.Tensor):
                method = getattr(args[0], op.methods[0])
                yield (
                    f"x.{op.methods[0]}: {p.name}={wrong!r}",
                    lambda m=method, a=args, k=kwargs: m(*a[1:], **k),  # type: ignore[misc]
                )


def mapped_values(one: Sample) -> dict[str, Any]:
    return {k: mapped(v, eg.tensor) for k, v in one.kwargs.items()}


@pytest.mark.parametrize("name", PUBLIC)
def test_wrong_types_are_refused_by_name(name: str) -> None:
    checked = 0
    for what, run in wrong_calls(name):
        try:
            out = run()
        except EverygradError:
            checked += 1
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        else:
            raise AssertionError(f"{what}: taken, gave {out!r}"[:200])
    assert checked


def arrays_in(one: Sample) -> int:
    found: list[Any] = []
    mapped([*one.args, *one.kwargs.values()], found.append)
    return len(found)


def partly(one: Sample, keep: Callable[[int], bool], device: str) -> Sample:
    """The sample with those of its arrays made tensors whose number `keep` says."""
    count = iter(range(1000))

    def make(array: Any) -> Any:
        return to_tensor(device)(array) if keep(next(count)) else array

    return Sample(mapped(one.args, make), {k: mapped(v, make) for k, v in one.kwargs.items()})


@pytest.mark.parametrize("name", [n for n in PUBLIC if n not in DRAWN])
def test_arrays_are_taken_where_tensors_are(name: str, device: str) -> None:
    """Each argument as an array beside tensors, and on the CPU all of them."""
    op = REGISTRY[name]
    checked = 0
    for one in list(samples_of(op, device))[: 1 if is_narrow(device) else 3]:
        if name == "cholesky":  # of a matrix that has one
            (m,) = one.args
            one = Sample((m @ np.swapaxes(m, -1, -2) + np.eye(m.shape[-1], dtype=m.dtype),))
        tensors = partly(one, lambda i: True, device)
        want = call(op.function, tensors)
        count = arrays_in(one)
        ways = [lambda i, k=k: i != k for k in range(count)] if count > 1 else []
        for keep in [*ways, *([lambda i: False] if device == "cpu" else [])]:
            got = call(op.function, partly(one, keep, device))
            assert all(isinstance(g, eg.Tensor) == isinstance(w, eg.Tensor) for g, w in
                       zip(got, want, strict=True))  # fmt: skip
            all_close(got, want, 0, name)
            checked += 1
    assert checked or device != "cpu"


def outcome(run: Callable[[], Any]) -> Any:
    """The values of a result, or the error it is refused with."""
    try:
        out = run()
    except EverygradError as error:
        return type(error)
    return [v.numpy() if isinstance(v, eg.Tensor) else v for v in
            (out if isinstance(out, tuple | list) else [out])]  # fmt: skip


def tensor_places(name: str) -> list[inspect.Parameter]:
    """The parameters that take one tensor each; none for ops of any number of tensors."""
    signature = inspect.signature(inspect.unwrap(REGISTRY[name].function))
    places = [p for p in signature.parameters.values() if annotated(p) == "Tensor"]
    return [] if places and places[0].kind is places[0].VAR_POSITIONAL else places


@pytest.mark.parametrize("number", [2, 0.5, True, np.float32(0.5), np.int64(1)], ids=repr)
@pytest.mark.parametrize("name", [n for n in PUBLIC if n not in DRAWN and tensor_places(n)])
def test_numbers_are_taken_where_tensors_are(name: str, number: Any) -> None:
    """An op of a number is the op of the 0-d tensor it stands for, or refused alike."""
    op = REGISTRY[name]
    signature = inspect.signature(inspect.unwrap(op.function))
    places = tensor_places(name)
    one = next(samples_of(op, "cpu"))
    bound = signature.bind(*mapped(one.args, eg.tensor), **mapped_values(one))
    others = [p.name for p in places[1:]]
    for other in others:  # all of them, so that there is no tensor beside
        bound.arguments[other] = number
    bound.arguments[places[0].name] = number
    got = outcome(lambda: op.function(*bound.args, **bound.kwargs))
    plain = number.item() if isinstance(number, np.generic) else number
    for p in places:
        bound.arguments[p.name] = eg.tensor(plain)
    want = outcome(lambda: op.function(*bound.args, **bound.kwargs))
    if isinstance(want, type) or isinstance(got, type):
        assert isinstance(want, type)
        assert isinstance(got, type)
    else:
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w)


LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(4, 2), (3, 4)),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 3), (1, 2, 8)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 3, padding=1), (1, 2, 8, 8)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 3), (1, 2, 4, 4)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2), (3, 2, 4, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (3, 4)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (1, 2, 4, 4)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (1, 2, 4, 4)),
    "ReLU": (nn.ReLU, (3, 4)),
    "GELU": (nn.GELU, (3, 4)),
    "Softmax": (lambda: nn.Softmax(-1), (3, 4)),
    "Flatten": (nn.Flatten, (3, 4, 2)),
    "Dropout": (lambda: nn.Dropout(0.0), (3, 4)),
    "Sequential": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), (3, 4)),
    "MSELoss": (nn.MSELoss, (3, 4)),
    "L1Loss": (nn.L1Loss, (3, 4)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), (2, 1, 4)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), (1, 2, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_take_arrays(name: str) -> None:
    make, shape = LAYERS[name]
    layer = make()
    layer.eval()
    count = {"MSELoss": 2, "L1Loss": 2, "MultiheadAttention": 3}.get(name, 1)
    arrays = [np.random.default_rng(i).normal(size=shape).astype(np.float32) for i in range(count)]
    want, got = layer(*map(eg.tensor, arrays)), layer(*arrays)
    while isinstance(want, tuple):
        want, got = want[0], got[0]
    assert isinstance(got, eg.Tensor)
    np.testing.assert_array_equal(got.detach().numpy(), want.detach().numpy())


def test_functions_of_nn_take_arrays() -> None:
    logits, labels = np.random.default_rng(0).normal(size=(4, 3)), np.array([0, 2, 1, 1])
    x = eg.tensor(logits, requires_grad=True)
    want = F.cross_entropy(x, eg.tensor(labels))
    assert F.cross_entropy(x, labels).item() == want.item() == eg.cross_entropy(x, labels).item()
    assert F.cross_entropy(logits, labels).item() == want.item()
    F.cross_entropy(x, labels).backward()
    assert x.grad is not None
    out = eg.concat([x, logits, np.ones((1, 3))])
    assert out.shape == (9, 3)
    out.sum().backward()
    assert eg.add(2.0, 3.0).item() == 5.0
    assert eg.multiply(np.ones(2), 2.5).tolist() == [2.5, 2.5]
    compiled = eg.jit(lambda x: F.cross_entropy(x, labels))
    np.testing.assert_allclose(compiled(x.detach()).item(), want.item(), rtol=1e-12)
    with pytest.raises(EverygradError, match="var: correction must be a number, got str 'x'"):
        x.var(correction="x")


def test_unknown_arguments_are_pythons_to_refuse() -> None:
    for run in (
        lambda: eg.var(eg.ones(2), nothing=1),
        lambda: eg.var(),
        lambda: eg.ones(2).sort(kind=3),
    ):  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="argument"):
            run()
