"""What brought models wrong answers elsewhere: modes, padding, masks, promotion, sizes, mutation;
and what is refused, with its cure."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import everygrad as eg
from everygrad.errors import (
    ArgumentError,
    DtypeError,
    MissingOpsError,
    ShapeError,
    TraceError,
)
from everygrad.interop.torch import versions
from everygrad.interop.torch.exchange import from_tensor


class Calls(nn.Module):
    """A module that does what a function does."""

    def __init__(self, function: Any, **buffers: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def agree(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Our results, which are PyTorch's to the bit, or nearly, and of its dtypes."""
    module = eg.from_torch(deepcopy(model), args, kwargs)
    got = module(*[from_tensor(a, copy=True) if isinstance(a, torch.Tensor) else a for a in args])
    want = model(*args, **kwargs)
    pairs = list(zip(_several(got), _several(want), strict=True))
    assert pairs
    for g, w in pairs:
        assert str(g.dtype) == str(w.dtype).removeprefix("torch.")
        assert g.shape == tuple(w.shape)
        if w.dtype is torch.bfloat16:
            g, w = g.astype("float32"), w.float()
        np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), rtol=1e-6, atol=1e-6)
    return module


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


# --- modes and random numbers --------------------------------------------------------------------


def test_dropout_follows_the_mode_and_our_generator() -> None:
    module = eg.from_torch(nn.Dropout(0.25), torch.ones(1, 4))
    x = eg.ones((100, 200))
    eg.manual_seed(3)
    first, second = module(x), module(x)
    eg.manual_seed(3)
    assert np.array_equal(module(x).numpy(), first.numpy())
    assert not np.array_equal(second.numpy(), first.numpy())
    kept = first.numpy() != 0
    assert abs(kept.mean() - 0.75) < 0.02
    assert np.allclose(first.numpy()[kept], 1 / 0.75)
    compiled = eg.jit(module)
    assert not np.array_equal(compiled(x).numpy(), compiled(x).numpy())
    module.eval()
    assert np.array_equal(module(x).numpy(), x.numpy())
    assert np.array_equal(compiled(x).numpy(), x.numpy())  # the mode is guarded


def test_the_mode_of_one_part() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    module = eg.from_torch(model, torch.zeros(4, 3))
    compiled, x = eg.jit(module), eg.randn((4, 3))
    compiled(x)
    module[1].eval()
    before = module[0].num_batches_tracked.item()
    out = compiled(x)
    assert out.detach().numpy().all()  # nothing is dropped
    assert module[0].num_batches_tracked.item() == before + 1
    assert model.training
    assert model[1].training
    assert module.programs == 2


def test_batch_norm_in_eval_uses_what_training_gathered() -> None:
    torch.manual_seed(0)
    model = nn.BatchNorm1d(3).double()
    module = eg.from_torch(model, torch.zeros(8, 3).double())
    for _ in range(3):
        x = torch.randn(8, 3, dtype=torch.float64) * 3 + 1
        model(x), module(from_tensor(x))
    got = module.eval()(from_tensor(x))
    want = model.eval()(x).detach().numpy()
    np.testing.assert_allclose(got.detach().numpy(), want, atol=1e-12)
    assert module.num_batches_tracked.item() == 3


# --- gradients that came out wrong elsewhere -----------------------------------------------------


def test_padding_gets_no_gradient() -> None:
    table = nn.Embedding(5, 3, padding_idx=2, scale_grad_by_freq=True)
    module = eg.from_torch(table, torch.tensor([0]))
    words = torch.tensor([[1, 2, 2], [4, 1, 2]])
    (table(words) ** 2).sum().backward()
    (module(from_tensor(words)) ** 2).sum().backward()
    assert module.weight.grad is not None
    assert table.weight.grad is not None
    np.testing.assert_allclose(module.weight.grad.numpy(), table.weight.grad.numpy(), rtol=1e-6)
    assert not module.weight.grad.numpy()[2].any()


def test_frozen_parameters_stay_frozen() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    module = eg.from_torch(model, torch.zeros(1, 3))
    module(eg.ones((1, 3))).sum().backward()
    assert module.bias.grad is None
    assert module.weight.grad is not None


@pytest.mark.parametrize("how", ["no_grad", "detach"])
def test_where_gradients_stop_in_a_model_they_stop_here(how: str) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(3.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if how == "no_grad":
                with torch.no_grad():
                    fixed = x * self.weight
            else:
                fixed = (x * self.weight).detach()
            return fixed + x * self.weight

    model = Half()
    for source in (model, torch.export.export(model, (torch.ones(2),))):
        module = eg.from_torch(source, torch.ones(2))
        out = module(eg.ones((2,)))
        out.sum().backward()
        assert out.tolist() == [6.0, 6.0]
        assert module.weight.grad is not None
        assert module.weight.grad.item() == 2.0
        module.weight.grad = None


def _in_no_grad(s: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        part = s.held[1:3]
        part.mul_(0.5)
    part.add_(x.detach()[0, 1:3])
    return x * s.weight + s.held


def _seen_by_a_detached_name(s: Any, x: torch.Tensor) -> torch.Tensor:
    before = s.held.detach()
    s.held.add_(1)
    return x * s.weight + before


def _written_by_a_detached_name(s: Any, x: torch.Tensor) -> torch.Tensor:
    s.held[1:3].detach().copy_(x.detach()[0, :2])
    return x * s.weight + s.held


def _detached_and_written(s: Any, x: torch.Tensor) -> torch.Tensor:
    fixed = (x * s.weight).detach()
    fixed.add_(1)
    return fixed * s.weight


@pytest.mark.parametrize(
    "function",
    [_in_no_grad, _seen_by_a_detached_name, _written_by_a_detached_name, _detached_and_written],
)
def test_a_detached_name_is_a_view(function: Any) -> None:
    model = Calls(function, held=torch.zeros(4))
    model.weight = nn.Parameter(torch.arange(4.0))
    module = eg.from_torch(deepcopy(model), torch.ones(2, 4))
    compiled = eg.jit(module)
    for call in (module, module, compiled, compiled):
        x = torch.randn(2, 4)
        want, got = model(x), call(eg.asarray(x.numpy()))
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-6)
        np.testing.assert_allclose(module.held.numpy(), model.held.numpy(), rtol=1e-6)
        want.sum().backward()
        got.sum().backward()
        assert module.weight.grad is not None
        np.testing.assert_allclose(module.weight.grad.numpy(), model.weight.grad, rtol=1e-5)


def test_a_matrix_that_is_singular_raises() -> None:
    module = eg.from_torch(Calls(lambda s, x: torch.linalg.inv(x)), torch.eye(2))
    for call in (module, eg.jit(module)):
        with pytest.raises(ArgumentError, match="a matrix is singular"):
            call(eg.zeros((2, 2)))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Calls(lambda s, x: (lambda y: (y.detach().zero_(), y))(x * 2)), "write to a clone"),
        (nn.Embedding(3, 2, max_norm=1.0), "max_norm of an embedding.* is not taken over"),
    ],
    ids=["zero_", "max_norm"],
)
def test_writes_that_a_gradient_does_not_see_are_refused(model: nn.Module, message: str) -> None:
    index = isinstance(model, nn.Embedding)
    with pytest.raises(TraceError, match=message):
        eg.from_torch(model, torch.tensor([1]) if index else torch.ones(2))


def test_a_backward_that_a_graph_cannot_hold_is_named() -> None:
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.round(x)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g

    with pytest.warns(UserWarning, match="gradients of .*Straight are those of its forward"):
        module = eg.from_torch(Calls(lambda s, x: Straight.apply(x)), torch.ones(2))
    assert module(eg.full((2,), 1.2)).tolist() == [1.0, 1.0]
    x = torch.tensor([1.2], requires_grad=True)
    Straight.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 1.0


# --- values --------------------------------------------------------------------------------------

COUNTS, FLOATS = torch.tensor([1, 2, 3]), torch.tensor([0.5, -1.0, 2.0])
MASK = torch.tensor([True, False, True])


def _put(s: Any, x: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    out = x.clone()
    out[mask] = value
    return out


FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "int + float number": (lambda s, x: x + 1.5, (COUNTS,)),
    "int / int": (lambda s, x: x / x, (COUNTS,)),
    "float32 + 0-d float64": (lambda s, x: x + torch.tensor(2.0, dtype=torch.float64), (FLOATS,)),
    "int + 0-d float64": (lambda s, x: x + torch.tensor(2.5, dtype=torch.float64), (COUNTS,)),
    "sum of bools": (lambda s, m: (m.sum(), m + m, m * m, m.float().mean()), (MASK,)),
    "uint8 wraps": (lambda s, x: x.to(torch.uint8) - 2, (COUNTS,)),
    "bfloat16 beside float32": (lambda s, x: x.bfloat16() * x, (FLOATS,)),
    "bfloat16 alone": (lambda s, x: torch.exp(x.bfloat16()) + 1, (FLOATS,)),
    "mask = number": (lambda s, x, m: _put(s, x, m, 7.0), (FLOATS, MASK)),
    "mask = values": (lambda s, x, m: _put(s, x, m, torch.tensor([8.0, 9.0])), (FLOATS, MASK)),
    "rows by mask": (
        lambda s, x, m: _put(s, x, m, torch.tensor([1.0, 2.0])),
        (torch.zeros(3, 2), MASK),
    ),
    "slice = values": (
        lambda s, x: x.slice_scatter(torch.ones(2, 3), 0, 1, 3).select_scatter(x[0] + 1, 0, 0),
        (torch.arange(12.0).reshape(4, 3),),
    ),
    "negative indices": (lambda s, x, i: x[i - 3], (FLOATS, COUNTS - 1)),
    "a view written": (lambda s, x: x.clone().view(3, 1).t().add_(1).mul(2), (FLOATS,)),
    "as_strided": (
        lambda s, x: x.as_strided((2, 2), (1, 2), 1) + x.as_strided((3, 2), (2, 1))[:2],
        (torch.arange(6.0),),
    ),
    "0-d": (
        lambda s, x: (x.sum(0), x.max(-1)[0], x.cumsum(0), x.sort(0)[1], x.squeeze(0)),
        (torch.tensor(3.0),),
    ),
    "empty": (lambda s, x: (x.sum(), x.sum(0), torch.cat([x, x])), (torch.zeros(0, 3),)),
    "sorted with ties": (
        lambda s, x: torch.sort(x, stable=True, descending=True),
        (torch.tensor([1.0, 2, 1, 2]),),
    ),
    "complex rotation": (
        lambda s, x: torch.view_as_real(
            torch.view_as_complex(x) * torch.polar(torch.ones(2), torch.tensor([0.5, 1.0]))
        ),
        (torch.randn(2, 2),),
    ),
    "factorisations that check": (
        lambda s, x: (torch.linalg.inv(x), torch.linalg.cholesky(x), torch.linalg.solve(x, x[0])),
        (torch.eye(3) * 2 + 1,),
    ),
    "histc": (lambda s, x: torch.histc(x, 4), (torch.tensor([0.0, 1, 1, 2.5, 4]),)),
    "constant": (lambda s, x: (torch.zeros(3), torch.arange(0, 1, 0.25), x * 1), (FLOATS,)),
    "searchsorted": (
        lambda s, x: torch.bucketize(x, torch.tensor([0.0, 1.0]), right=True),
        (FLOATS,),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_dtypes_are_pytorchs(name: str) -> None:
    function, args = FUNCTIONS[name]
    module = agree(Calls(function), *args)
    given = [from_tensor(a, copy=True) for a in args]
    for eager, traced in zip(
        _several(module(*given)), _several(eg.jit(module)(*given)), strict=True
    ):
        assert np.array_equal(eager.numpy(), traced.numpy(), equal_nan=eager.dtype.is_float)


def test_autocast_in_the_model() -> None:
    def function(s: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return nn.functional.layer_norm(x @ x.t(), (3,))

    module = eg.from_torch(Calls(function), torch.ones(3, 3))
    x = torch.randn(3, 3)
    got, want = module(from_tensor(x)), function(None, x)
    assert str(got.dtype) == str(want.dtype).removeprefix("torch.")
    assert np.abs(got.astype("float32").numpy() - want.float().numpy()).max() < 0.05


def test_what_a_model_writes_to_is_written_to_here() -> None:
    def cached(s: Any, x: torch.Tensor) -> torch.Tensor:
        s.cache.index_copy_(1, s.place.reshape(1), x.reshape(2, 1))
        s.place += 1
        return s.cache.sum()

    model = Calls(cached, cache=torch.zeros(2, 4), place=torch.tensor(0))
    module = eg.from_torch(model, torch.zeros(2))
    compiled = eg.jit(module)
    found = [compiled(eg.full((2,), float(i))).item() for i in (1, 2, 3)]
    assert found == [2.0, 6.0, 12.0]
    assert module.place.item() == 3
    assert module.cache.numpy().tolist() == [[1.0, 2.0, 3.0, 0.0]] * 2
    assert not model.cache.any()
    assert model.place.item() == 0

    written = eg.from_torch(Calls(lambda s, x: x.add_(1) * 2), torch.zeros(2))
    x = eg.zeros((2,))
    assert written(x).tolist() == [2.0, 2.0]
    assert x.tolist() == [1.0, 1.0]


def test_constants_are_no_tensors_that_a_trace_keeps(tmp_path: Path) -> None:
    model = Calls(lambda s, x: x * torch.tensor([5.0, 6.0, 7.0]))
    eg.io.save_onnx(eg.from_torch(model, torch.zeros(3)), eg.ones((3,)), tmp_path / "a.onnx")
    again = eg.io.load_onnx(tmp_path / "a.onnx")
    assert again(eg.ones((3,))).tolist() == [5.0, 6.0, 7.0]


def test_constants_follow_the_model_also_while_it_is_traced(device: str) -> None:
    table = torch.tensor([1.0, 2.0, 3.0])
    model = Calls(lambda s, x: x * table + torch.tensor([5.0, 6.0, 7.0]), held=torch.ones(3))
    module = eg.from_torch(model, torch.zeros(3)).to(device)
    compiled, x = eg.jit(module), eg.ones((3,), device=device)
    assert compiled(x).tolist() == module(x).tolist() == compiled(x).tolist() == [6.0, 8.0, 10.0]
    assert module.to("cpu")(eg.ones((3,))).tolist() == [6.0, 8.0, 10.0]


def test_results_are_nobody_elses_memory() -> None:
    module = eg.from_torch(Calls(lambda s, x: (torch.zeros(3), x * 1)), torch.ones(3))
    x = eg.ones((3,))
    zeros, same = module(x)
    zeros += 5
    same += 5
    assert module(x)[0].tolist() == [0.0] * 3
    assert x.tolist() == [1.0] * 3


# --- containers, keywords, sizes -----------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Named:
    loss: Any
    scores: Any = None


torch.export.register_dataclass(Named)


def test_keywords_and_containers() -> None:
    def function(s: Any, x: Any, *, more: Any, flag: bool = True) -> Any:
        y = x["a"] + more[0] if flag else x["a"] - more[0]
        return Named(y.sum(), OrderedDict(pair=Pair(y, [y * 2])))

    model = Calls(function)
    module = eg.from_torch(model, ({"a": torch.ones(2)},), {"more": [torch.ones(2)]})
    given = {"a": eg.ones((2,))}
    for run in (module, eg.jit(module)):
        out = run(given, more=[eg.ones((2,))])
        assert type(out) is Named
        assert type(out.scores["pair"]) is Pair
        assert out.loss.item() == 4.0
        assert out.scores["pair"].second[0].tolist() == [4.0, 4.0]
    assert module(given, more=[eg.ones((2,))], flag=False).loss.item() == 0.0


def test_every_set_of_shapes_is_a_program_and_is_counted() -> None:
    module = eg.from_torch(Calls(lambda s, x: x.reshape(-1, 2).sum(0)), torch.ones(4))
    assert module.programs == 1
    assert [module(eg.ones((n,))).tolist() for n in (4, 6, 6)] == [[2, 2], [3, 3], [3, 3]]
    assert module.programs == 2
    fixed = eg.from_torch(nn.ReLU(), torch.ones(4), dynamic=False)
    with pytest.raises(ShapeError, match=r"exported for inputs .*\(4,\).*dynamic=True"):
        fixed(eg.ones((5,)))
    assert fixed.eval()(eg.ones((4,))).shape == (4,)
    assert fixed.programs == 2


def test_threads_export_one_after_the_other() -> None:
    models = [nn.Sequential(nn.Linear(3, 2), part) for part in (nn.Tanh(), nn.GELU())]
    modules = [eg.from_torch(deepcopy(m), torch.zeros(1, 3)) for m in models]

    def calls(i: int) -> None:
        for n in (2, 3):
            x = torch.randn(n, 3)
            got = modules[i % 2](eg.asarray(x.numpy())).detach().numpy()
            np.testing.assert_allclose(got, models[i % 2](x).detach().numpy(), rtol=1e-5, atol=1e-6)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, range(4)))
    assert [m.programs for m in modules] == [3, 3]


def test_without_examples_it_is_exported_when_first_called() -> None:
    module = eg.from_torch(nn.Linear(3, 2))
    assert module.programs == 0
    assert list(module.state_dict()) == ["weight", "bias"]
    assert module(eg.ones((1, 3))).shape == (1, 2)
    assert module.programs == 1


def test_ops_that_are_one_here_are_kept_whole() -> None:
    def function(s: Any, x: torch.Tensor) -> Any:
        y, _ = s.rnn(x)
        return nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)

    model = Calls(function)
    model.rnn = nn.LSTM(3, 4, 2, batch_first=True)
    module = eg.from_torch(model, torch.zeros(2, 7, 3))
    (program,) = module._source.programs.values()
    targets = [step.target for step in program.program.steps]
    assert "aten::lstm.input" in targets
    assert "aten::scaled_dot_product_attention.default" in targets
    assert len(targets) < 20  # not unrolled step by step


# --- exported programs ---------------------------------------------------------------------------


class Two(nn.Module):
    """Weights below, a buffer that is not saved, sizes left open."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.ModuleList([nn.Linear(3, 4), nn.Dropout(0.5)])
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.block[1](self.block[0](x)) * self.scale
        return {"y": y.reshape(x.shape[0] * 2, -1) + torch.arange(2), "n": y + x.shape[0]}


def test_an_exported_program_with_open_sizes() -> None:
    model = Two().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes={"x": {0: batch}})
    module = eg.from_torch(program)
    assert list(module.state_dict()) == list(model.state_dict())
    assert [n for n, _ in module.named_buffers()] == ["scale"]
    for n in (4, 7, 9):
        x = torch.randn(n, 3)
        got, want = module(from_tensor(x)), model(x)
        for key, value in want.items():
            np.testing.assert_allclose(got[key].detach().numpy(), value.detach().numpy(), atol=1e-6)
    assert module.programs == 3
    with pytest.raises(ShapeError, match=r"x must be .* got \(4, 5\)"):
        module(eg.ones((4, 5)))
    with pytest.raises(ShapeError, match="x must be"):
        module(eg.ones((4,)))
    with pytest.raises(DtypeError, match="x must be float32, got int64; use astype"):
        module(eg.ones((4, 3), dtype="int64"))
    with pytest.raises(ArgumentError, match="the program takes arguments"):
        module(x=eg.ones((4, 3)))
    with pytest.raises(ArgumentError, match="exported in eval mode and has no other; call eval"):
        module.train()(eg.ones((4, 3)))


# --- what is refused -----------------------------------------------------------------------------


def test_ops_that_are_missing_are_listed_at_once() -> None:
    def function(s: Any, x: torch.Tensor) -> Any:
        return x.nonzero(), torch.ops.everygrad_test.odd(x), x[x > 0]

    library = torch.library.Library("everygrad_test", "DEF")
    library.define("odd(Tensor x) -> Tensor")
    torch.library.impl(library, "odd", "CompositeExplicitAutograd")(lambda x: x.clone())
    torch.library.register_fake("everygrad_test::odd", lambda x: torch.empty_like(x), lib=library)
    with pytest.raises(MissingOpsError) as raised:
        eg.from_torch(Calls(function), torch.ones(3))
    assert "aten::nonzero.default: the size of its result depends on values" in str(raised.value)
    assert "everygrad_test::odd.default (at odd)" in str(raised.value)
    assert "aten::index.Tensor: the size of its result depends on values" in str(raised.value)
    assert len(raised.value.lacking) == 3


def test_control_flow_that_needs_values_is_refused() -> None:
    model = Calls(lambda s, x: x * 2 if x.sum() > 0 else x)
    with pytest.raises(TraceError, match=r"torch.export cannot make one graph of Calls"):
        eg.from_torch(model, torch.ones(3))


def test_wrong_arguments_are_named() -> None:
    module = eg.from_torch(nn.Sequential(nn.Linear(3, 2)), torch.zeros(1, 3))
    with pytest.raises(ArgumentError, match=r"takes a torch.nn.Module or an ExportedProgram"):
        eg.from_torch(lambda x: x, torch.zeros(1))
    with pytest.raises(ArgumentError, match=r"lazy module's weights .* has been called once"):
        eg.from_torch(nn.LazyLinear(3), torch.zeros(1, 2))
    with pytest.raises(ArgumentError, match=r"takes everygrad's tensors now; .*from_dlpack"):
        module(torch.zeros(1, 3))
    with pytest.raises(ArgumentError, match=r"got ndarray; convert arrays with eg.asarray"):
        module(np.zeros((1, 3)))
    with pytest.raises(ArgumentError, match="Linear: a part of a PyTorch model runs within"):
        module[0](eg.zeros((1, 3)))
    with pytest.raises(DtypeError, match=r"0.weight was float32 .* is float64 now; change PyTorch"):
        module.double()(eg.zeros((1, 3), dtype="float32"))
    with pytest.raises(DtypeError, match=r"takes dense tensors, got torch.sparse_coo"):
        eg.from_torch(Calls(lambda s, x: x, held=torch.eye(2).to_sparse()), torch.zeros(1))
    with pytest.raises(DtypeError, match="float8_e5m2 has no dtype here"):
        from_tensor(torch.zeros(2, dtype=torch.float8_e5m2))


def test_names_that_moved_say_which_versions_were_tried() -> None:
    with pytest.raises(ArgumentError, match=r"no torch.export.gone; .* tried are .*2\.13"):
        versions.torch_name("torch.export.gone")
    with pytest.raises(ArgumentError, match=r"no torch.nowhere.gone"):
        versions.torch_name("torch.nowhere.gone")


def test_exporting_leaves_pytorch_as_it_was() -> None:
    model = nn.Sequential(nn.LSTM(3, 4), Calls(lambda s, x: x[0]), nn.Dropout(0.5))
    model[0].eval()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    fast = torch.backends.mha.get_fastpath_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = eg.from_torch(model, torch.zeros(2, 3))
    module.eval()(eg.zeros((2, 3)))
    assert [m.training for m in model] == [False, True, True]
    assert torch.backends.mha.get_fastpath_enabled() is fast
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert model(torch.zeros(2, 3)).shape == (2, 4)
