"""Loss scaling: float16 gradients are kept from vanishing by a factor on the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from everygrad.autograd.modes import no_grad
from everygrad.autograd.trees import flatten, unflatten
from everygrad.core.context import tracing
from everygrad.core.scopes import untraced
from everygrad.core.tensor import Tensor
from everygrad.dtypes import float16, float32
from everygrad.errors import ArgumentError, DtypeError, GradientError
from everygrad.nn.parameter import other_ranks
from everygrad.ops.elementwise.basic import isfinite, logical_or, where
from everygrad.ops.python.creation import full, tensor
from everygrad.optim.optimizer import Optimizer, put

_SETTINGS = ("growth_factor", "backoff_factor", "growth_interval")


class GradScaler:
    """Scales a loss before backward, and skips steps whose gradients overflowed.

    After `growth_interval` steps without overflow the scale grows, after one with it shrinks. Scale
    and count are 0-d tensors and a step is skipped by `where`, not by `if`: a whole training step,
    `update` included, may be compiled. With bfloat16 no scaling is needed: its range is float32's.

    >>> import everygrad as eg
    >>> w = eg.tensor([1.0], requires_grad=True)
    >>> opt, scaler = eg.optim.SGD([w], lr=0.5), eg.optim.GradScaler(init_scale=1024.0)
    >>> with eg.autocast(dtype="float16"):
    ...     loss = (w * w).sum()
    >>> scaler.scale(loss).backward()
    >>> scaler.step(opt)
    >>> scaler.update()
    >>> w.item(), scaler.get_scale()
    (0.0, 1024.0)
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        _check_scale("init_scale", init_scale)
        self.changes = 0  # of settings, which a compiled step takes for granted
        self._enabled = enabled
        self._init_scale = float(init_scale)
        self._scale: Tensor | None = None  # made beside the first loss, unless a device is named
        self._good_steps: Tensor | None = None
        # of each optimiser since the last update: whether an overflow was found, what was done
        self._found: dict[int, Tensor] = {}
        self._done: dict[int, str] = {}
        self._set(growth_factor, backoff_factor, growth_interval)
        if device is not None:
            self._begin(device)

    def _set(self, growth: float, backoff: float, interval: int) -> None:
        if not growth > 1.0:
            raise ArgumentError(f"GradScaler: growth_factor must be above 1, got {growth!r}")
        if not 0.0 < backoff < 1.0:
            raise ArgumentError(
                f"GradScaler: backoff_factor must lie between 0 and 1, got {backoff!r}"
            )
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ArgumentError(
                f"GradScaler: growth_interval must be a positive integer, got {interval!r}"
            )
        self._growth_factor, self._backoff_factor = float(growth), float(backoff)
        self._growth_interval = interval
        self.changes += 1

    def _begin(self, device: str) -> tuple[Tensor, Tensor]:
        """The scale and the count of good steps, made when they are first needed."""
        if self._scale is None or self._good_steps is None:
            with untraced():  # not part of a compiled step, which would make them again and again
                self._scale = full((), self._init_scale, float32, device)
                self._good_steps = full((), 0.0, float32, device)
        return self._scale, self._good_steps

    # --- a step ----------------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """A loss, or a container of tensors, times the scale."""
        if not self._enabled:
            return outputs
        leaves, tree = flatten(outputs)
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise ArgumentError(f"GradScaler.scale: takes tensors, got {type(leaf).__name__}")
        return unflatten(tree, [t * self._begin(t.device)[0].to(t.device) for t in leaves])

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale now, so that they can be clipped before `step`."""
        if not self._enabled:
            return
        if (done := self._done.get(id(optimizer))) is not None:
            raise ArgumentError(
                f"GradScaler.unscale_: {done} was called already since the last update()"
            )
        scale = self._current("unscale_", optimizer)
        params = _with_gradients(optimizer)
        if any(p.dtype is float16 for p in params):
            raise DtypeError(
                "GradScaler.unscale_: a float16 gradient vanishes without its scale; keep "
                "parameters in float32 under eg.autocast(), or call step() alone, which "
                "unscales in float32"
            )
        with no_grad():
            self._found[id(optimizer)] = _overflow(params)
            factors = {p.device: 1.0 / scale.to(p.device) for p in params}
            for p in params:
                assert p.grad is not None
                p.grad = (p.grad * factors[p.device]).astype(p.dtype)
        self._done[id(optimizer)] = "unscale_()"

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step()`, without effect where a gradient is infinite or NaN.

        Gradients that `unscale_` has not unscaled are unscaled in float32 on the way, and stay as
        they are in `.grad`.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or "closure" in kwargs:
            raise ArgumentError("GradScaler.step: takes no closure; compute gradients before")
        done = self._done.get(id(optimizer))
        if done == "step()":
            raise ArgumentError("GradScaler.step: called twice since the last update()")
        scale = None
        if done is None:
            scale = self._current("step", optimizer)
            with no_grad():
                self._found[id(optimizer)] = _overflow(_with_gradients(optimizer))
        self._done[id(optimizer)] = "step()"
        found = self._found[id(optimizer)]
        return optimizer.step(found_inf=found, grad_scale=scale, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Let the scale grow or shrink after what the steps found, or set it."""
        if not self._enabled:
            return
        scale, good = self._current("update"), self._good_steps
        assert good is not None
        if (tracer := tracing.get()) is not None:
            tracer.depends(self)
        with no_grad():
            if new_scale is not None:
                put(scale, self._given(new_scale, scale.device))
            else:
                self._adapt(scale, good)
        self._found.clear()
        self._done.clear()

    def _given(self, new_scale: float | Tensor, device: str) -> Tensor:
        if isinstance(new_scale, Tensor):
            return new_scale.detach().to(device).astype(float32).reshape(())
        _check_scale("update: new_scale", new_scale)
        return full((), float(new_scale), float32, device)

    def _adapt(self, scale: Tensor, good: Tensor) -> None:
        if not self._found:
            raise ArgumentError("GradScaler.update: call step() or unscale_() first")
        first, *others = [f.to(scale.device) for f in self._found.values()]
        for other in others:
            first = logical_or(first, other)
        count = good + 1.0
        full_row = count >= float(self._growth_interval)
        grown = scale * self._growth_factor
        grown = where(isfinite(grown), grown, scale)
        put(scale, where(first, scale * self._backoff_factor, where(full_row, grown, scale)))
        put(good, where(logical_or(first, full_row), 0.0, count))

    def _current(self, what: str, optimizer: Optimizer | None = None) -> Tensor:
        if self._scale is None and optimizer is not None:
            params = [p for group in optimizer.param_groups for p in group["params"]]
            if other_ranks(params) is not None:  # one of which may have had the loss
                self._begin(params[0].device)
        if self._scale is None:
            raise ArgumentError(f"GradScaler.{what}: call scale() on the loss first")
        return self._scale

    # --- settings and state ----------------------------------------------------------------------

    def is_enabled(self) -> bool:
        return self._enabled

    def get_scale(self) -> float:
        """The scale as a number; waits for the device."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else float(self._scale.item())

    def get_growth_factor(self) -> float:
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        self._set(new_factor, self._backoff_factor, self._growth_interval)

    def get_backoff_factor(self) -> float:
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        self._set(self._growth_factor, new_factor, self._growth_interval)

    def get_growth_interval(self) -> int:
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        self._set(self._growth_factor, self._backoff_factor, new_interval)

    def state_dict(self) -> dict[str, Any]:
        """Numbers to save; empty where scaling is off."""
        if not self._enabled:
            return {}
        good = 0 if self._good_steps is None else int(self._good_steps.item())
        settings = {name: getattr(self, f"_{name}") for name in _SETTINGS}
        return {"scale": self.get_scale(), **settings, "_growth_tracker": good}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off; if it raises, nothing has changed."""
        if not self._enabled:
            return
        missing = {"scale", *_SETTINGS, "_growth_tracker"} - set(state_dict)
        if missing:
            raise ArgumentError(
                f"GradScaler.load_state_dict: {', '.join(sorted(missing))} missing; was it saved "
                f"by a scaler that was not enabled?"
            )
        _check_scale("load_state_dict: scale", state_dict["scale"])
        self._set(*(state_dict[name] for name in _SETTINGS))
        self._init_scale = float(state_dict["scale"])
        # a scale that is there stays the tensor it is: a compiled step reads it
        scale, good = self._begin("cpu" if self._scale is None else self._scale.device)
        put(scale, tensor(self._init_scale, float32, scale.device))
        put(good, tensor(float(state_dict["_growth_tracker"]), float32, good.device))


def _check_scale(what: str, value: Any) -> None:
    if not isinstance(value, int | float) or not 0.0 < value < math.inf:
        raise ArgumentError(f"GradScaler: {what} must be positive and finite, got {value!r}")


def _with_gradients(optimizer: Optimizer) -> list[Tensor]:
    """The parameters that have a gradient, of which there must be some."""
    found = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not found:
        raise GradientError(
            "GradScaler: no parameter of the optimiser has a gradient; call "
            "scaler.scale(loss).backward() first"
        )
    return found


def _overflow(params: list[Tensor]) -> Tensor:
    """Whether a gradient has an infinity or a NaN, as a 0-d tensor. Of parameters that are parts:
    on any rank, so that all of them skip a step, or none."""
    device = params[0].device
    found: Tensor | None = None
    for p in params:
        assert p.grad is not None
        bad = isfinite(p.grad).all().logical_not().to(device)
        found = bad if found is None else logical_or(found, bad)
    assert found is not None
    others = other_ranks(params)
    return found if others is None else others.on_any(params, found)
