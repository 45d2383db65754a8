"""Pruning by masks: `module.weight` is weight_orig * weight_mask while it is pruned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from everygrad.autograd.modes import no_grad
from everygrad.core import shapes
from everygrad.core.nearest import answering as _answering
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.nn.utils.computed import compute, computed_names, keep
from everygrad.ops.elementwise.basic import abs as _abs, where
from everygrad.ops.index.sort import argsort
from everygrad.ops.python.creation import ones_like
from everygrad.ops.python.inplace import assign
from everygrad.ops.random.generators import rand
from everygrad.ops.reduce.norms_and_counts import norm
from everygrad.ops.shape.joining import concat


def _count(method: str, amount: float, size: int) -> int:
    """How many of `size` an amount means: a share if a float, a number if an int."""
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise ArgumentError(f"{method}: amount must be a number, got {amount!r}")
    if isinstance(amount, float):
        if not 0.0 <= amount <= 1.0:
            raise ArgumentError(f"{method}: a share must be between 0.0 and 1.0, got {amount!r}")
        return round(amount * size)
    if not 0 <= amount <= size:
        raise ArgumentError(f"{method}: amount must be between 0 and {size}, got {amount}")
    return amount


class BasePruningMethod:
    """A way to choose what is pruned: subclasses define `compute_mask(t, default_mask)`.

    `apply(module, name, ...)` prunes: what was pruned before stays so.
    """

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """1 where `t` is kept, 0 where not; 0 wherever `default_mask` is."""
        raise NotImplementedError(f"{type(self).__name__} defines no compute_mask()")

    @classmethod
    def apply(
        cls,
        module: Any,
        name: str,
        *args: Any,
        importance_scores: Tensor | None = None,
        **kwargs: Any,
    ) -> BasePruningMethod:
        """Prune the parameter `name` of a module."""
        method = cls(*args, **kwargs)
        pruned = f"{name}_mask" in module._buffers
        weight = getattr(module, f"{name}_orig" if pruned else name, None)
        if not isinstance(weight, Parameter):
            known = ", ".join(n for n, _ in module._own(Parameter)) or "none"
            raise ArgumentError(
                f"{cls.__name__}: {type(module).__name__} has no parameter {name!r}; "
                f"there are: {known}"
            )
        # what is pruned already counts nothing in the norms of slices
        scores = getattr(module, name) if importance_scores is None else importance_scores
        if scores.shape != weight.shape:
            raise ShapeError(
                f"{cls.__name__}: importance_scores {scores.shape} must have shape {weight.shape}"
            )
        with no_grad():
            before = getattr(module, f"{name}_mask") if pruned else ones_like(weight.detach())
            mask = method.compute_mask(scores.detach(), before).astype(weight.dtype).detach()
        if mask.shape != weight.shape:
            raise ShapeError(f"{cls.__name__}: a mask {mask.shape} for a weight {weight.shape}")
        if pruned:
            with no_grad():
                assign(getattr(module, f"{name}_mask"), mask, cls.__name__)
        else:
            _hold(module, name, weight, mask)
        return method

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None
    ) -> Tensor:
        """`t` with what is pruned set to 0."""
        with no_grad():
            before = ones_like(t.detach()) if default_mask is None else default_mask
            scores = t if importance_scores is None else importance_scores
            mask = self.compute_mask(scores.detach(), before)
        return t * mask.astype(t.dtype)


def _hold(module: Any, name: str, weight: Parameter, mask: Tensor) -> None:
    delattr(module, name)
    module.register_parameter(f"{name}_orig", weight)
    module.register_buffer(f"{name}_mask", mask)

    def value(self: Any) -> Tensor:
        out: Tensor = getattr(self, f"{name}_orig") * getattr(self, f"{name}_mask")
        return out

    compute(module, name, value)


def _without_smallest(scores: Tensor, mask: Tensor, count: int) -> Tensor:
    """The mask less the `count` smallest scores of those it still keeps."""
    flat, kept = scores.reshape(-1), mask.reshape(-1) != 0
    # what is pruned comes last, so that the first of the order are the smallest that are kept
    order = argsort(where(kept, flat, float("inf")))
    place = argsort(order)
    return (kept & (place >= count)).reshape(mask.shape)


class Identity(BasePruningMethod):
    """Prunes nothing, but makes the mask."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class RandomUnstructured(BasePruningMethod):
    """Prunes elements at random."""

    def __init__(self, amount: float) -> None:
        _count("RandomUnstructured", amount, 2**62)
        self.amount = amount

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        left = int((default_mask != 0).sum().item())
        drawn = rand(t.shape, device=t.device)
        return _without_smallest(
            drawn, default_mask, _count("random_unstructured", self.amount, left)
        )


class L1Unstructured(BasePruningMethod):
    """Prunes the elements nearest to 0."""

    def __init__(self, amount: float) -> None:
        _count("L1Unstructured", amount, 2**62)
        self.amount = amount

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        left = int((default_mask != 0).sum().item())
        return _without_smallest(
            _abs(t), default_mask, _count("l1_unstructured", self.amount, left)
        )


class _Structured(BasePruningMethod):
    """Prunes whole slices along an axis."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, dim: int = -1) -> None:
        _count(type(self).__name__, amount, 2**62)
        self.amount = amount
        self.dim = dim

    def scores(self, t: Tensor, axis: int) -> Tensor:
        """How much each slice counts."""
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        name = type(self).__name__
        axis = shapes.axis_index(self.dim, t.ndim, name)
        others = tuple(k for k in range(t.ndim) if k != axis)
        alive = (default_mask != 0).any(axis=others) if others else default_mask != 0
        count = _count(name, self.amount, int(alive.sum().item()))
        kept = _without_smallest(self.scores(t, axis), alive, count)
        shape = [t.shape[k] if k == axis else 1 for k in range(t.ndim)]
        return (default_mask != 0) & kept.reshape(shape)


class RandomStructured(_Structured):
    """Prunes slices along an axis at random."""

    def scores(self, t: Tensor, axis: int) -> Tensor:
        return rand((t.shape[axis],), device=t.device)


class LnStructured(_Structured):
    """Prunes the slices along an axis whose n-norm is smallest."""

    def __init__(self, amount: float, n: float, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def scores(self, t: Tensor, axis: int) -> Tensor:
        rows = t.moveaxis(axis, 0).reshape(t.shape[axis], -1)
        return norm(rows, self.n, 1)


class CustomFromMask(BasePruningMethod):
    """Prunes what a mask says."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if self.mask.shape != default_mask.shape:
            raise ShapeError(
                f"custom_from_mask: mask {self.mask.shape} must have shape {default_mask.shape}"
            )
        return default_mask * self.mask.astype(default_mask.dtype)


# --- functions -----------------------------------------------------------------------------------


def identity(module: Any, name: str) -> Any:
    """Give a parameter a mask of ones.

    >>> import everygrad as eg
    >>> prune = eg.nn.utils.prune
    >>> sorted(prune.identity(eg.nn.Linear(2, 3, bias=False), "weight").state_dict())
    ['weight_mask', 'weight_orig']
    """
    Identity.apply(module, name)
    return module


def random_unstructured(module: Any, name: str, amount: float) -> Any:
    """Prune an amount (a share, or a number) of elements at random.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.prune.random_unstructured(eg.nn.Linear(4, 5), "weight", 0.5)
    >>> int(layer.weight_mask.sum().item())
    10
    """
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(
    module: Any, name: str, amount: float, importance_scores: Tensor | None = None
) -> Any:
    """Prune the elements nearest to 0, or with the smallest scores.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.prune.l1_unstructured(eg.nn.Linear(4, 5), "weight", 3)
    >>> int((layer.weight == 0).sum().item())
    3
    """
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Any, name: str, amount: float, dim: int) -> Any:
    """Prune slices along an axis at random.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.prune.random_structured(eg.nn.Linear(4, 5), "weight", 2, dim=0)
    >>> int(layer.weight_mask.sum().item())
    12
    """
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Any,
    name: str,
    amount: float,
    n: float,
    dim: int,
    importance_scores: Tensor | None = None,
) -> Any:
    """Prune the slices along an axis whose n-norm is smallest.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.prune.ln_structured(eg.nn.Linear(4, 5), "weight", 1, n=2, dim=1)
    >>> int(layer.weight_mask.sum().item())
    15
    """
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Any, name: str, mask: Tensor) -> Any:
    """Prune by a mask.

    >>> import everygrad as eg
    >>> layer = eg.nn.Linear(2, 1, bias=False)
    >>> layer = eg.nn.utils.prune.custom_from_mask(layer, "weight", eg.tensor([[0, 1]]))
    >>> bool(layer.weight[0, 0] == 0)
    True
    """
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Any, str]],
    pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Any, str], Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Prune several parameters as if they were one vector.

    >>> import everygrad as eg
    >>> model = eg.nn.Sequential(eg.nn.Linear(2, 3), eg.nn.Linear(3, 1))
    >>> prune = eg.nn.utils.prune
    >>> prune.global_unstructured([(m, "weight") for m in model], prune.L1Unstructured, amount=4)
    >>> sum(int((m.weight == 0).sum().item()) for m in model)
    4
    """
    held = list(parameters)
    if pruning_method.PRUNING_TYPE != "unstructured":
        raise ArgumentError(
            f"global_unstructured: {pruning_method.__name__} prunes slices; only methods for "
            f"single elements work on several parameters together"
        )
    if not held:
        raise ArgumentError("global_unstructured: needs one (module, name) or more, got none")
    given = importance_scores or {}
    with no_grad():
        scores = [given.get((m, n), getattr(m, n)).detach().reshape(-1) for m, n in held]
        masks = [getattr(m, f"{n}_mask", None) for m, n in held]
        flat = [
            ones_like(s) if k is None else k.reshape(-1) for s, k in zip(scores, masks, strict=True)
        ]
        joined, before = concat(scores, axis=0), concat(flat, axis=0)
        mask = pruning_method(**kwargs).compute_mask(joined, before)
    start = 0
    for (module, name), part in zip(held, scores, strict=True):
        shape = getattr(module, name).shape
        custom_from_mask(module, name, mask[start : start + part.size].reshape(shape))
        start += part.size


def is_pruned(module: Module) -> bool:
    """Whether any parameter of a module, or of one below it, is pruned.

    >>> import everygrad as eg
    >>> eg.nn.utils.prune.is_pruned(eg.nn.Linear(2, 3))
    False
    """
    return any(f"{name}_mask" in m._buffers for m in module.modules() for name in computed_names(m))


def remove(module: Any, name: str) -> Any:
    """Make a pruned parameter plain, with its zeros.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.prune.identity(eg.nn.Linear(2, 3), "weight")
    >>> sorted(eg.nn.utils.prune.remove(layer, "weight").state_dict())
    ['bias', 'weight']
    """
    if name not in computed_names(module) or f"{name}_mask" not in module._buffers:
        raise ArgumentError(f"remove: {name!r} of {type(module).__name__} is not pruned")
    with no_grad():
        value = getattr(module, name).detach()
    weight = getattr(module, f"{name}_orig")
    keep(module, name)
    delattr(module, f"{name}_orig")
    delattr(module, f"{name}_mask")
    with no_grad():
        assign(weight, value, "remove")  # the same parameter: an optimiser may hold it
    setattr(module, name, weight)
    return module


__getattr__ = _answering(__name__)
