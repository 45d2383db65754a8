"""`eg.checkpoint` as `torch.utils.checkpoint` has it: with switches, which choose nothing here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from everygrad.autograd.transforms import checkpoint as _here
from everygrad.core.nearest import answering

# between implementations, and what each saves by hand; here random numbers count once anyway
_SWITCHES = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug")


def _rest(switches: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in switches.items() if name not in _SWITCHES}


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`eg.checkpoint`; PyTorch's switches do not reach the function.

    >>> import everygrad as eg
    >>> from everygrad.utils.checkpoint import checkpoint
    >>> x = eg.tensor([1.0, 2.0], requires_grad=True)
    >>> checkpoint(lambda v: (v * v).sum(), x, use_reentrant=False).backward()
    >>> x.grad
    tensor([2., 4.])
    """
    return _here.checkpoint(function, *args, **_rest(kwargs))


def checkpoint_sequential(
    functions: Sequence[Callable[..., Any]], segments: int, input: Any, **switches: Any
) -> Any:
    """`eg.checkpoint_sequential`, with the same switches."""
    return _here.checkpoint_sequential(functions, segments, input, **_rest(switches))


__getattr__ = answering(__name__)
