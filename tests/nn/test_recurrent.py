"""Recurrent layers against PyTorch's: every option, padded and packed, eager and compiled."""

from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import nn
from everygrad.errors import ArgumentError, ShapeError
from tests.support.trained_beside_torch import Case, ours, real, same, train_beside_torch

LENGTHS = [2, 5, 3]


def packed(module: Any, lib: Any, xs: list[Any], sort: bool = False) -> Any:
    """The module on packed sequences, padded again."""
    rnn = lib.utils.rnn
    lengths = sorted(LENGTHS, reverse=True) if sort else LENGTHS
    given = rnn.pack_padded_sequence(xs[0], lengths, enforce_sorted=sort)
    out, state = module(given, *xs[1:])
    return rnn.pad_packed_sequence(out, padding_value=0.5)[0], state


def with_state(module: Any, lib: Any, xs: list[Any]) -> Any:
    return module(xs[0], tuple(xs[1:]) if len(xs) > 2 else xs[1])


def arrays(*shapes: tuple[int, ...]) -> Any:
    return lambda rng: [rng.standard_normal(shape) for shape in shapes]


X = real(5, 3, 4)
CASES = {
    "lstm": Case(lambda n: n.LSTM(4, 6), X),
    "lstm state": Case(lambda n: n.LSTM(4, 6), arrays((5, 3, 4), (1, 3, 6), (1, 3, 6)), with_state),
    "lstm layers": Case(lambda n: n.LSTM(4, 6, num_layers=3, batch_first=True), real(3, 5, 4)),
    "lstm both ways": Case(lambda n: n.LSTM(4, 3, 2, bidirectional=True, bias=False), X),
    "lstm unbatched": Case(lambda n: n.LSTM(4, 6), real(5, 4)),
    "lstm projected": Case(lambda n: n.LSTM(4, 6, 2, proj_size=3, bidirectional=True), X),
    "lstm packed": Case(lambda n: n.LSTM(4, 6, 2, bidirectional=True), X, packed),
    "lstm packed sorted": Case(lambda n: n.LSTM(4, 3), X, lambda *a: packed(*a, sort=True)),
    "lstm projected packed": Case(lambda n: n.LSTM(4, 6, proj_size=2), X, packed),
    "lstm dropout off": Case(lambda n: n.LSTM(4, 6, 2, dropout=0.4), X, evaluate=True),
    "lstm long": Case(lambda n: n.LSTM(17, 40, 2), real(9, 7, 17)),
    "gru": Case(lambda n: n.GRU(4, 6), X),
    "gru state": Case(lambda n: n.GRU(4, 6, 2), arrays((5, 3, 4), (2, 3, 6)), with_state),
    "gru both ways": Case(lambda n: n.GRU(4, 6, 2, bidirectional=True, batch_first=True), X),
    "gru packed": Case(lambda n: n.GRU(4, 6, 2, bidirectional=True), X, packed),
    "gru packed state": Case(lambda n: n.GRU(4, 6), arrays((5, 3, 4), (1, 3, 6)), packed),
    "gru plain": Case(lambda n: n.GRU(4, 6, bias=False), X),
    "gru long": Case(lambda n: n.GRU(17, 40, 2), real(9, 7, 17)),
    "rnn": Case(lambda n: n.RNN(4, 6), X),
    "rnn relu": Case(lambda n: n.RNN(4, 6, nonlinearity="relu", num_layers=2), X),
    "rnn both ways": Case(lambda n: n.RNN(4, 6, bidirectional=True), X),
    "rnn packed": Case(lambda n: n.RNN(4, 6, bidirectional=True), X, packed),
    "rnn unbatched": Case(lambda n: n.RNN(4, 6), arrays((5, 4), (1, 6)), with_state),
    "lstm cell": Case(lambda n: n.LSTMCell(4, 6), real(3, 4)),
    "lstm cell state": Case(lambda n: n.LSTMCell(4, 6), arrays((3, 4), (3, 6), (3, 6)), with_state),
    "lstm cell unbatched": Case(lambda n: n.LSTMCell(4, 6, bias=False), real(4)),
    "gru cell": Case(lambda n: n.GRUCell(4, 6), arrays((3, 4), (3, 6)), with_state),
    "rnn cell": Case(lambda n: n.RNNCell(4, 6), arrays((3, 4), (3, 6)), with_state),
    "rnn cell relu": Case(lambda n: n.RNNCell(4, 6, nonlinearity="relu"), real(3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name: str) -> None:
    train_beside_torch(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_torch(name: str) -> None:
    train_beside_torch(CASES[name], steps=2, jit=True)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_repr_is_torchs(kind: str) -> None:
    options = {"num_layers": 2, "bidirectional": True, "batch_first": True}
    ours_shown = repr(getattr(nn, kind)(3, 4, **options))
    assert ours_shown == repr(getattr(torch.nn, kind)(3, 4, **options))


def test_dropout_is_between_layers_only() -> None:
    layer = nn.LSTM(4, 8, num_layers=2, dropout=1.0)
    x = eg.randn((5, 3, 4))
    out, _ = layer(x)
    nothing, _ = nn_second(layer, eg.zeros((5, 3, 8)))
    assert eg.allclose(out, nothing)
    assert not eg.allclose(layer.eval()(x)[0], nothing)


def nn_second(layer: Any, x: eg.Tensor) -> Any:
    """The second layer alone."""
    alone = nn.LSTM(8, 8)
    state = layer.state_dict()
    alone.load_state_dict({k.replace("l1", "l0"): v for k, v in state.items() if "l1" in k})
    return alone(x)


def test_pads_and_packs_as_torch() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((n, 2)) for n in (2, 4, 1)]
    mine, theirs = [eg.tensor(r) for r in rows], [torch.from_numpy(r) for r in rows]
    rnn, trnn = nn.utils.rnn, torch.nn.utils.rnn
    for side in ("left", "right"):
        for first in (True, False):
            options = {"batch_first": first, "padding_value": -1.0, "padding_side": side}
            same(rnn.pad_sequence(mine, **options), trnn.pad_sequence(theirs, **options), "pad")
    a = rnn.pack_sequence(mine, enforce_sorted=False)
    b = trnn.pack_sequence(theirs, enforce_sorted=False)
    same(a.data, b.data, "data")
    assert list(a.batch_sizes) == b.batch_sizes.tolist()
    assert a.sorted_indices.tolist() == b.sorted_indices.tolist()
    assert a.unsorted_indices.tolist() == b.unsorted_indices.tolist()
    padded, lengths = rnn.pad_packed_sequence(a, total_length=6)
    torch_padded, torch_lengths = trnn.pad_packed_sequence(b, total_length=6)
    same(padded, torch_padded, "padded")
    assert lengths.tolist() == torch_lengths.tolist() == [2, 4, 1]
    for x, y in zip(rnn.unpack_sequence(a), theirs, strict=True):
        same(x, y, "unpacked")
    order = torch.tensor([2, 0, 1])
    assert rnn.invert_permutation(ours(order)).tolist() == [1, 2, 0]
    assert a.to(dtype="float32").data.dtype is eg.float32


def test_compiled_layers_take_and_give_packed_sequences() -> None:
    layer, x = nn.LSTM(3, 4, 2, bidirectional=True), eg.randn((5, 2, 3))
    compiled, pack = eg.jit(layer), nn.utils.rnn.pack_padded_sequence
    for lengths in ([3, 5], [3, 5], [2, 2]):
        given = pack(x, lengths, enforce_sorted=False)
        (out, (h, c)), (plain, (ph, pc)) = compiled(given), layer(given)
        assert out.batch_sizes == plain.batch_sizes
        assert out.unsorted_indices.tolist() == plain.unsorted_indices.tolist()
        for a, b in ((out.data, plain.data), (h, ph), (c, pc)):
            assert eg.allclose(a, b, atol=1e-6)
    assert compiled.count == 2  # one for each pattern of lengths


PACKED = nn.utils.rnn.pack_sequence([eg.ones(3)])
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "hidden size": (lambda: nn.LSTM(3, 0), ArgumentError, "LSTM: hidden_size must be a positive"),
    "layers": (lambda: nn.GRU(3, 4, 0), ArgumentError, "GRU: num_layers must be a positive"),
    "dropout": (lambda: nn.LSTM(3, 4, dropout=1.5), ArgumentError, "LSTM: dropout must be between"),
    "projection": (lambda: nn.GRU(3, 4, proj_size=2), ArgumentError, "GRU: proj_size is for LSTM"),
    "wide": (lambda: nn.LSTM(3, 4, proj_size=4), ArgumentError, "proj_size 4 must be below"),
    "kind": (lambda: nn.RNN(3, 4, nonlinearity="elu"), ArgumentError, "RNN: nonlinearity must be"),
    "width": (lambda: nn.LSTM(3, 4)(eg.ones((2, 2, 5))), ShapeError, "LSTM: takes .steps, batch"),
    "no steps": (lambda: nn.GRU(3, 4)(eg.ones((0, 2, 3))), ShapeError, "one step or more"),
    "state": (
        lambda: nn.GRU(3, 4)(eg.ones((2, 2, 3)), eg.ones((1, 3, 4))),
        ShapeError,
        r"GRU: the state must have shape \(1, 2, 4\), got \(1, 3, 4\)",
    ),
    "no pair": (
        lambda: nn.LSTM(3, 4)(eg.ones((2, 2, 3)), eg.ones((1, 2, 4))),
        ArgumentError,
        r"LSTM: hx must be a pair \(h, c\)",
    ),
    "cell": (lambda: nn.LSTMCell(3, 4)(eg.ones((2, 5))), ShapeError, "LSTMCell: takes"),
    "cell state": (
        lambda: nn.GRUCell(3, 4)(eg.ones((2, 3)), eg.ones((2, 5))),
        ShapeError,
        "GRUCell: the state must have shape",
    ),
    "lengths grow": (
        lambda: nn.utils.rnn.pack_padded_sequence(eg.ones((3, 2)), [1, 2]),
        ArgumentError,
        "lengths .* grow",
    ),
    "length 0": (
        lambda: nn.utils.rnn.pack_padded_sequence(eg.ones((3, 2)), [3, 0]),
        ArgumentError,
        "lengths must be integers from 1 to 3, got 0",
    ),
    "few lengths": (
        lambda: nn.utils.rnn.pack_padded_sequence(eg.ones((3, 2)), [3]),
        ShapeError,
        "2 lengths are needed",
    ),
    "total length": (
        lambda: nn.utils.rnn.pad_packed_sequence(PACKED, total_length=2),
        ArgumentError,
        "total_length must be at least 3",
    ),
    "side": (
        lambda: nn.utils.rnn.pad_sequence([eg.ones(3)], padding_side="top"),
        ArgumentError,
        "padding_side",
    ),
    "rows": (
        lambda: nn.utils.rnn.pad_sequence([eg.ones((2, 3)), eg.ones((2, 4))]),
        ShapeError,
        "differ in their first axis only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()
