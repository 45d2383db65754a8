"""Names of PyTorch's modules that have no counterpart here, each with the reason or the cure.

The `AttributeError` of `nn.Container` and the like says it; `docs/from-pytorch.md` has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from everygrad.core.nearest import no_attribute

_SCALED = "products of scaled 8-bit floats; use matmul on float16 or bfloat16"


def _in_place(name: str) -> str:
    return f"values never change in place: write x = F.{name.removesuffix('_')}(x)"


ABSENT: dict[str, dict[str, str]] = {
    "torch.nn": {
        "Container": "use Module, of which it is PyTorch's oldest name",
        "CrossMapLRN2d": "use LocalResponseNorm, which takes any number of places",
        "DataParallel": "use eg.distributed.DataParallel: one process has one device",
        "LinearCrossEntropyOptions": "linear_cross_entropy needs no options here: leave them out",
        "NLLLoss2d": "use NLLLoss, which takes any number of places",
        "SyncBatchNorm": "use eg.distributed.SyncBatchNorm, over the ranks of a mesh",
    },
    "torch.nn.functional": {
        **{
            name: _in_place(name)
            for name in (
                *("celu_", "elu_", "hardtanh_", "leaky_relu_"),
                *("relu_", "rrelu_", "selu_", "threshold_"),
            )
        },
        "grouped_mm": "use matmul of stacked matrices, or one matmul for each group",
        "scaled_grouped_mm": _SCALED,
        "scaled_mm": _SCALED,
    },
    "torch.nn.utils": {},
    "torch.nn.utils.rnn": {},
    "torch.nn.utils.parametrize": {},
    "torch.nn.utils.parametrizations": {},
    "torch.nn.init": {},
}


def missing(here: str, there: str, known: Callable[[], Iterable[str]]) -> Callable[[str], Any]:
    """A module's `__getattr__` that answers with what to use, or with the nearest names."""

    def answer(name: str) -> Any:
        reason = ABSENT.get(there, {}).get(name)
        raise no_attribute(here, name, known(), f"; {reason}" if reason else "")

    return answer
