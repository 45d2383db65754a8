"""Averages of a model's weights: SWA, the mean of many epochs, and EMA, which forgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

from everygrad.autograd.modes import no_grad
from everygrad.core.context import tracing
from everygrad.core.tensor import Tensor
from everygrad.core.torch_optim_names import missing as _missing
from everygrad.errors import ArgumentError
from everygrad.nn.module import Module
from everygrad.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import full_like, tensor
from everygrad.optim.group import Group, precise
from everygrad.optim.lr_scheduler.base import LRScheduler, checked_optimizer, for_each_group
from everygrad.optim.optimizer import Optimizer
from everygrad.optim.rule import Change, Rule, Shared, Update, copied, put

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

AvgFn = Callable[[Tensor, Tensor, Tensor], Tensor]
MultiAvgFn = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None]
_BATCH_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d)

EMA = Update("swa.ema", lambda mean, x, *, decay: mean * decay + x * (1 - decay))
MEAN = Update("swa.mean", lambda mean, x, n: mean + (x - mean) / (n + 1.0))


def _check_decay(name: str, decay: Any) -> None:
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay <= 1:
        raise ArgumentError(f"{name}: decay must lie between 0 and 1, got {decay!r}")


def get_ema_avg_fn(decay: float = 0.999) -> AvgFn:
    """The exponential moving average of one tensor, for `AveragedModel(avg_fn=...)`.

    >>> import everygrad as eg
    >>> mean = eg.optim.swa_utils.get_ema_avg_fn(0.75)
    >>> mean(eg.tensor(4.0), eg.tensor(8.0), eg.tensor(1))
    tensor(5.)
    """
    _check_decay("get_ema_avg_fn", decay)

    def averaged(mean: Tensor, x: Tensor, n: Tensor) -> Tensor:
        new: Tensor = decay * mean + (1 - decay) * x
        return new

    return averaged


def get_swa_avg_fn() -> AvgFn:
    """The plain mean of one tensor, for `AveragedModel(avg_fn=...)`.

    >>> import everygrad as eg
    >>> eg.optim.swa_utils.get_swa_avg_fn()(eg.tensor(4.0), eg.tensor(8.0), eg.tensor(1))
    tensor(6.)
    """

    def averaged(mean: Tensor, x: Tensor, n: Tensor) -> Tensor:
        new: Tensor = mean + (x - mean) / (n + 1).astype(precise(mean))
        return new

    return averaged


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAvgFn:
    """The exponential moving average of many tensors, for `AveragedModel(multi_avg_fn=...)`.

    >>> import everygrad as eg
    >>> means = [eg.tensor([4.0])]
    >>> eg.optim.swa_utils.get_ema_multi_avg_fn(0.75)(means, [eg.tensor([8.0])], eg.tensor(1))
    >>> means
    [tensor([5.])]
    """
    _check_decay("get_ema_multi_avg_fn", decay)
    rule = Rule(Change(EMA, (0, 1), {"decay": decay}))
    return lambda means, xs, n: _change_all(rule, means, xs)


def get_swa_multi_avg_fn() -> MultiAvgFn:
    """The plain mean of many tensors, for `AveragedModel(multi_avg_fn=...)`.

    >>> import everygrad as eg
    >>> means = [eg.tensor([4.0])]
    >>> eg.optim.swa_utils.get_swa_multi_avg_fn()(means, [eg.tensor([8.0])], eg.tensor(1))
    >>> means
    [tensor([6.])]
    """
    rule = Rule(Change(MEAN, (0, 1, 2), {}))

    def averaged(means: Sequence[Tensor], xs: Sequence[Tensor], n: Tensor) -> None:
        counts = {precise(t): n.to(t.device).astype(precise(t)) for t in means}
        _change_all(rule, means, xs, counts)

    return averaged


@no_grad()
def _change_all(
    rule: Rule,
    means: Sequence[Tensor],
    xs: Sequence[Tensor],
    counts: dict[Any, Tensor] | None = None,
) -> None:
    """A rule on every mean: one launch for all of them. Integers are truncated, as in PyTorch."""
    shared = Shared(Group({}))
    for mean, x in zip(means, xs, strict=True):
        more = () if counts is None else (counts[precise(mean)],)
        if mean.dtype.is_float:
            shared.change(rule, mean, x, *more)
        else:
            wide = mean.astype(precise(mean))
            rule.run((wide, x.astype(precise(mean)), *more))
            put(mean, wide.astype(mean.dtype))
    shared.settle()


class AveragedModel(Module):
    """A copy of a model whose parameters are averages of the model's.

    avg_fn        the new average, of the average, the parameter and how many were averaged
    multi_avg_fn  the same for lists of tensors of one device and dtype: gives the averages new
                  values (`get_ema_multi_avg_fn`); without either, the plain mean (SWA)
    use_buffers   average buffers too; otherwise they are copied

    `update_parameters` may stand inside a compiled step.

    >>> import everygrad as eg
    >>> model = eg.nn.Linear(1, 1, bias=False)
    >>> swa_utils = eg.optim.swa_utils
    >>> mean = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5))
    >>> for value in (1.0, 3.0):
    ...     _ = eg.nn.init.constant_(model.weight, value)
    ...     mean.update_parameters(model)
    >>> mean.module.weight.item()
    2.0
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: str | None = None,
        avg_fn: AvgFn | None = None,
        multi_avg_fn: MultiAvgFn | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError("AveragedModel: takes avg_fn or multi_avg_fn, not both")
        if not isinstance(model, Module):
            raise ArgumentError(f"AveragedModel: takes a module, got {type(model).__name__}")
        self.module = deepcopy(model)
        for t in (*self.module.parameters(), *self.module.buffers()):
            t.rebind(copied(t)._data, t._node)
        if device is not None:
            self.module.to(device)
        home = device or next((p.device for p in model.parameters()), "cpu")
        self.register_buffer("n_averaged", tensor(0, device=home))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @no_grad()
    def update_parameters(self, model: Module) -> None:
        """Take the model's parameters into the averages."""
        if (tracer := tracing.get()) is not None:
            for module in (self, *self.module.modules(), *model.modules()):
                tracer.met(module)
        means: list[Tensor] = list(self.module.parameters())
        xs: list[Tensor] = list(model.parameters())
        buffers = list(zip(self.module.buffers(), model.buffers(), strict=True))
        if self.use_buffers:
            means += [mean for mean, _ in buffers]
            xs += [x for _, x in buffers]
        if [t.shape for t in means] != [t.shape for t in xs]:
            raise ArgumentError(
                "AveragedModel.update_parameters: the model's parameters are not those of the one "
                "that was copied"
            )
        near = [x.detach().to(mean.device) for mean, x in zip(means, xs, strict=True)]
        begun = {device: self.n_averaged.to(device) > 0 for device in {t.device for t in means}}
        self._average(means, near)
        for mean, x in zip(means, near, strict=True):  # the first time they are the model's
            put(mean, where(begun[mean.device], mean, x.astype(mean.dtype)))
        if not self.use_buffers:
            for mean, x in buffers:
                put(mean, x.detach().to(mean.device))
        put(self.n_averaged, self.n_averaged + 1)
        for module in self.module.modules():
            module.values_changed()

    def _average(self, means: list[Tensor], xs: list[Tensor]) -> None:
        if self.avg_fn is not None:
            for mean, x in zip(means, xs, strict=True):
                new = self.avg_fn(mean.detach(), x, self.n_averaged.to(mean.device))
                put(mean, new.astype(mean.dtype))
            return
        kinds: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for mean, x in zip(means, xs, strict=True):
            one = kinds.setdefault((mean.device, mean.dtype), ([], []))
            one[0].append(mean)
            one[1].append(x)
        average = self.multi_avg_fn or get_swa_multi_avg_fn()
        for (device, _), (some, theirs) in kinds.items():
            average(some, theirs, self.n_averaged.to(device))


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: str | None = None) -> None:
    """Compute the running statistics of all batch norms anew, as means over a loader's batches.

    A batch that is a list or tuple has the input first.

    >>> import everygrad as eg
    >>> model = eg.nn.BatchNorm1d(1)
    >>> eg.optim.swa_utils.update_bn([eg.ones((4, 1)), eg.ones((4, 1)) * 3], model)
    >>> model.running_mean
    tensor([2.])
    """
    norms = [m for m in model.modules() if isinstance(m, _BATCH_NORMS)]
    if not norms:
        return
    momenta, training = [m.momentum for m in norms], model.training
    for norm in norms:
        _forget_statistics(norm)
    try:
        model.train()
        for norm in norms:
            norm.momentum = None
        for batch in loader:
            x = batch[0] if isinstance(batch, list | tuple) else batch
            model(x if device is None else x.to(device))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train(training)


def _forget_statistics(norm: Any) -> None:
    for held, value in (
        (norm.running_mean, 0),
        (norm.running_var, 1),
        (norm.num_batches_tracked, 0),
    ):
        if held is not None:
            put(held, full_like(held, value))


_ANNEALINGS: dict[str, Callable[[float], float]] = {
    "cos": lambda t: (1.0 - math.cos(math.pi * t)) / 2,
    "linear": lambda t: t,
}


class SWALR(LRScheduler):
    """The rate goes to `swa_lr` in `anneal_epochs` epochs, and stays there.

    >>> import everygrad as eg
    >>> opt = eg.optim.SGD([eg.ones((1,), requires_grad=True)], lr=1.0)
    >>> schedule = eg.optim.swa_utils.SWALR(opt, swa_lr=0.5, anneal_epochs=2)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.75]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        self.optimizer = checked_optimizer(self, optimizer)
        if anneal_strategy not in _ANNEALINGS:
            raise ArgumentError(
                f'SWALR: anneal_strategy must be "cos" or "linear", got {anneal_strategy!r}'
            )
        epochs = anneal_epochs
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
            raise ArgumentError(
                f"SWALR: anneal_epochs must be an integer of at least 0, got {epochs!r}"
            )
        for group, lr in zip(
            optimizer.param_groups, for_each_group(self, "swa_lr", swa_lr), strict=True
        ):
            group["swa_lr"] = lr
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        """How much of the way is done."""
        done = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return _ANNEALINGS[self._anneal_strategy](done)

    def get_lr(self) -> Sequence[float]:
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, share = self._share(step - 1), self._share(step)
        rates = []
        for group, lr in zip(self.optimizer.param_groups, self._rates_now(), strict=True):
            end = group["swa_lr"]
            # where it came from, if nothing else has changed the rate meanwhile
            start = end if before == 1 else (lr - before * end) / (1 - before)
            rates.append(end * share + start * (1 - share))
        return rates


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python asks for these itself
        raise AttributeError(name)
    raise _missing("optim.swa_utils", name, __all__)
