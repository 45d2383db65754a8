"""Multi-tensor updates on CUDA, without a GPU: what is launched, and whose memory is written."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import optim
from everygrad.backends import base
from everygrad.backends.cuda import array
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver import nvrtc
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.kernels.multi_tensor import UpdateForm
from everygrad.backends.cuda.source.prelude import with_library
from everygrad.optim.adamw import AVERAGE, MOVE
from everygrad.optim.optimizer import Change, Rule

SHAPES = ((5,), (3, 7), (64, 300))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A dry GPU that nothing was launched on."""
    made = Cuda("cuda:dry", DryDriver())
    monkeypatch.setitem(base._OPEN, "cuda:dry", made)
    yield made
    array._plans.clear()  # they launch on the device they were made on


def tensors(shapes: Any, dtype: str = "float32") -> list[eg.Tensor]:
    made = [eg.tensor(np.ones(s, np.float32), dtype, device="cuda:dry") for s in shapes]
    return [t.requires_grad_() for t in made]


def stepped(params: list[eg.Tensor], opt: Any, steps: int) -> None:
    for _ in range(steps):
        for p in params:
            p.grad = eg.tensor(np.ones(p.shape, np.float32), p.dtype, device="cuda:dry")
        opt.step()


def launched(gpu: Any, work: Callable[[], None]) -> list[str]:
    """The kernels that some work launches, without the digests of their texts."""
    with gpu.launches() as names:
        work()
    return [name.rsplit("_", 1)[0] for name in names]


@pytest.mark.parametrize(
    ("make", "last"),
    [
        (lambda ps: optim.AdamW(ps), "multi_tensor_adam_move"),
        (lambda ps: optim.Adam(ps, amsgrad=True, weight_decay=0.1), "multi_tensor_adam_move"),
        (lambda ps: optim.SGD(ps), "multi_tensor_sgd"),
        (lambda ps: optim.SGD(ps, momentum=0.9), "multi_tensor_sgd_along"),
        (lambda ps: optim.SGD(ps, momentum=0.9, nesterov=True), "multi_tensor_sgd_nesterov"),
        (lambda ps: optim.NAdam(ps), "multi_tensor_nadam_move"),
        (lambda ps: optim.RAdam(ps, weight_decay=0.1), "multi_tensor_radam_move"),
        (lambda ps: optim.Adamax(ps), "multi_tensor_adamax_move"),
        (lambda ps: optim.Adagrad(ps, lr_decay=0.1), "multi_tensor_adagrad_move"),
        (lambda ps: optim.Adadelta(ps), "multi_tensor_adadelta_moved"),
        (lambda ps: optim.Adadelta(ps, weight_decay=0.1), "multi_tensor_adadelta_moved"),
        (lambda ps: optim.RMSprop(ps), "multi_tensor_rmsprop_move"),
        (lambda ps: optim.RMSprop(ps, momentum=0.9, centered=True), "multi_tensor_rmsprop_along"),
        (lambda ps: optim.Rprop(ps), "multi_tensor_rprop_previous"),
        (lambda ps: optim.ASGD(ps), "multi_tensor_asgd_average"),
        (lambda ps: optim.Lion(ps, weight_decay=0.1), "multi_tensor_lion_momentum"),
        (lambda ps: optim.ScheduleFreeAdamW(ps), "multi_tensor_schedule_free_plain"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_parameters_move_in_one_launch(gpu: Any, make: Any, last: str, dtype: str) -> None:
    params = tensors(SHAPES, dtype)
    opt = make(params)
    stepped(params, opt, 2)
    names = launched(gpu, lambda: stepped(params, opt, 1))
    assert [n for n in names if n.startswith("multi_tensor")] == [last]
    # the rest is of scalars, and for half parameters a copy from and to their master weights
    scalars = [n for n in names if not n.startswith(("multi_tensor", "where", "astype", "cast"))]
    assert len(scalars) <= 9


def test_lamb_takes_a_launch_before_its_norms_and_one_after(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optim.LAMB, "reduces", False)  # where it is not compiled
    params = tensors(SHAPES)
    opt = optim.LAMB(params)
    stepped(params, opt, 2)
    names = launched(gpu, lambda: stepped(params, opt, 1))
    found = [n for n in names if n.startswith("multi_tensor")]
    assert found == ["multi_tensor_lamb_step", "multi_tensor_lamb_move"]


def test_averages_of_weights_are_one_launch(gpu: Any) -> None:
    model = eg.nn.Linear(5, 3).to("cuda:dry")
    for multi in (
        optim.swa_utils.get_ema_multi_avg_fn(0.9),
        optim.swa_utils.get_swa_multi_avg_fn(),
    ):
        mean = optim.swa_utils.AveragedModel(model, multi_avg_fn=multi)
        names = launched(gpu, lambda mean=mean: mean.update_parameters(model))
        assert sum(n.startswith("multi_tensor") for n in names) == 1


def test_many_parameters_take_as_many_launches_as_their_table_needs(gpu: Any) -> None:
    params = tensors([(3,)] * 100)
    opt = optim.AdamW(params)
    stepped(params, opt, 2)
    names = launched(gpu, lambda: stepped(params, opt, 1))
    assert names.count("multi_tensor_adam_move") == 3
    held = UpdateForm(Rule(), (eg.float32,) * 7, (False,) * 7)
    assert 8 * (held.pointers + 2) * held.most <= 4096


def test_few_kernels_serve_all_numbers_of_parameters(gpu: Any) -> None:
    for count in range(1, 17):
        params = tensors([(3,)] * count)
        stepped(params, optim.SGD(params), 1)
    texts = [n for n in gpu.gpu.driver.texts if n.startswith("multi_tensor")]
    assert len(texts) == 5  # tables for 1, 2, 4, 8 and 16


def test_new_values_go_to_the_memory_of_old_ones_that_nobody_sees(gpu: Any) -> None:
    params = tensors(SHAPES)
    opt = optim.AdamW(params)
    stepped(params, opt, 2)
    held = [params[0].detach(), opt.state[params[1]]["exp_avg"].detach()]
    seen = params[2][1:]
    moving = [*params, *(opt.state[p]["exp_avg"] for p in params)]
    before = [t._data.storage.ptr for t in moving]
    old = [t._data for t in (*held, seen)]
    stepped(params, opt, 1)
    same = [t._data.storage.ptr == ptr for t, ptr in zip(moving, before, strict=True)]
    assert same == [False, True, False, True, False, True]
    assert [t._data for t in (*held, seen)] == old
    assert all(
        t._data.storage.ptr == a.storage.ptr for t, a in zip((*held, seen), old, strict=True)
    )


def test_a_value_that_was_remembered_is_another_payload_after_a_step(gpu: Any) -> None:
    params = tensors([(4,)])
    opt = optim.SGD(params)
    stepped(params, opt, 1)
    ptr, remembered = params[0]._data.ptr, weakref.ref(params[0]._data)
    stepped(params, opt, 1)
    assert params[0]._data.ptr == ptr
    assert remembered() is None
    assert params[0].is_leaf
    assert params[0].requires_grad


def test_arrays_of_other_strides_run_op_by_op(gpu: Any) -> None:
    params = tensors([(6, 4), (2, 3)])
    opt = optim.SGD(params)

    def work() -> None:
        params[0].grad = eg.tensor(np.ones((4, 6), np.float32), device="cuda:dry").T
        params[1].grad = eg.tensor(np.ones((2, 3), np.float32), device="cuda:dry")
        opt.step()

    work()
    names = launched(gpu, work)
    assert sorted(names) == ["multi_tensor_sgd", "sgd"]


def test_arrays_transposed_alike_share_a_kernel(gpu: Any) -> None:
    p = eg.tensor(np.ones((4, 6), np.float32), device="cuda:dry").T.detach().requires_grad_()
    opt = optim.SGD([p])

    def work() -> None:
        p.grad = eg.tensor(np.ones((4, 6), np.float32), device="cuda:dry").T
        opt.step()

    assert launched(gpu, work) == ["multi_tensor_sgd"]
    assert p._data.strides == (1, 6)


def test_a_profile_sees_every_op(gpu: Any) -> None:
    params = tensors(SHAPES)
    opt = optim.AdamW(params)
    stepped(params, opt, 2)
    with eg.tools.profile() as found:
        stepped(params, opt, 1)
    assert "adam.average" in found.table()


def test_kernels_compile(gpu: Any) -> None:
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        params = tensors(SHAPES, dtype)
        for opt in (
            optim.AdamW(params, master_weights=False),
            optim.Adam(params, amsgrad=True, weight_decay=0.1),
            optim.SGD(params, momentum=0.9, nesterov=True, weight_decay=0.1),
            optim.NAdam(params, weight_decay=0.1),
            optim.RAdam(params),
            optim.Adamax(params),
            optim.Adagrad(params, weight_decay=0.1),
            optim.Adadelta(params, weight_decay=0.1),
            optim.RMSprop(params, momentum=0.9, centered=True),
            optim.Rprop(params, maximize=True),
            optim.ASGD(params),
            optim.Lion(params, weight_decay=0.1),
            optim.LAMB(params),
            optim.ScheduleFreeAdamW(params, warmup_steps=3, weight_decay=0.1),
        ):
            stepped(params, opt, 2)
    texts = [t for n, t in gpu.gpu.driver.texts.items() if n.startswith("multi_tensor")]
    assert len(texts) >= 10
    whole = with_library("".join(t.source for t in texts))
    options = ("--gpu-architecture=sm_80", *nvrtc.OPTIONS, "--Ofast-compile=max")
    assert nvrtc.opened().build("all", whole, options)


def test_rules_are_one_where_they_do_the_same() -> None:
    settings = {"eps": 1e-8, "decay": 0.0}
    one, two = (Rule(Change(MOVE, (0, 1), dict(settings))) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Rule(Change(MOVE, (1, 0), settings))
    assert one != Rule(Change(MOVE, (0, 1), {**settings, "eps": 1e-6}))
    assert one != Rule(Change(AVERAGE, (0, 1), settings))
