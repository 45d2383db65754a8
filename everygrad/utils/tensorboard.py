"""`torch.utils.tensorboard` without PyTorch: the writer of an installed package, given our tensors.

Loaded when it is asked for; without tensorboardX, or tensorboard beside PyTorch, it says what to
install.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from everygrad.core.nearest import no_attribute
from everygrad.core.tensor import Tensor
from everygrad.training.logs import summary_writer


def _plain(value: Any) -> Any:
    """NumPy arrays in place of tensors, in containers too."""
    if isinstance(value, Tensor):
        return value.detach().numpy()
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


@cache
def _writer() -> Any:
    base = summary_writer("SummaryWriter")

    def adding(name: str) -> Any:
        method = getattr(base, name)

        def add(self: Any, *args: Any, **kwargs: Any) -> Any:
            return method(self, *map(_plain, args), **_plain(kwargs))

        add.__name__, add.__doc__ = name, method.__doc__
        return add

    methods = {n: adding(n) for n in dir(base) if n.startswith("add_")}
    return type("SummaryWriter", (base,), {**methods, "__module__": __name__})


def __getattr__(name: str) -> Any:
    if name == "SummaryWriter":
        return _writer()
    raise no_attribute(__name__, name, ("SummaryWriter",))
