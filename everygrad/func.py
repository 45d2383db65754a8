"""`torch.func` in one place: transformations of functions, which everygrad itself has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from everygrad.autograd.transforms.functional import (
    grad as grad,
    hessian as hessian,
    jacfwd as jacfwd,
    jacobian as jacobian,
    jvp as jvp,
    value_and_grad,
    vjp as vjp,
)
from everygrad.autograd.transforms.vmap import vmap as vmap
from everygrad.core.nearest import no_attribute
from everygrad.nn.utils.stateless import (
    functional_call as functional_call,
    stack_module_state as stack_module_state,
)

jacrev = jacobian  # PyTorch's name
_NAMES = (
    *("functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp"),
    *("stack_module_state", "vjp", "vmap"),
)


def grad_and_value(
    func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """`eg.value_and_grad` the other way round.

    >>> import everygrad as eg
    >>> eg.func.grad_and_value(lambda x: x * x)(eg.tensor(3.0))
    (tensor(6.), tensor(9.))
    """
    both = value_and_grad(func, argnums, has_aux)

    @wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return found, value

    return run


def __getattr__(name: str) -> Any:
    raise no_attribute("everygrad.func", name, _NAMES)


def __dir__() -> list[str]:
    return [*_NAMES]
