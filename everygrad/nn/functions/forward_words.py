"""PyTorch's names for what its modules' forward functions take: `criterion(input=x, target=y)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

# PyTorch's name -> where the parameter stands
WORDS = {"input": 0, "input_": 0, "log_input": 0, "input1": 0, "input2": 1, "target_": 1}


@cache
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of a forward function of ours, without self; of another's, none."""
    if not forward.__module__.startswith("everygrad."):
        return ()
    return tuple(inspect.signature(forward).parameters)[1:]


def in_our_words(forward: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments by the names that the function has for them.

    >>> import everygrad as eg
    >>> in_our_words(eg.nn.MSELoss.forward, {"input": 1, "target": 2})
    {'x': 1, 'target': 2}
    """
    own = _parameters(forward)
    made = {}
    for name, value in given.items():
        at = None if name in own else WORDS.get(name)
        ours = name if at is None or at >= len(own) else own[at]
        made[name if ours in given else ours] = value
    return made
