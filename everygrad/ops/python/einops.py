"""einops on our tensors: its functions find a backend here, registered when einops is imported.

einops asks the subclasses of its AbstractBackend which of them knows a tensor. Ours can be made
only once einops is there, so a finder waits for its import; nothing is imported for its sake.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np

from everygrad.core.tensor import Tensor
from everygrad.ops.python.creation import arange, tensor
from everygrad.ops.record.spec import REGISTRY
from everygrad.ops.shape.joining import concat, stack

_AWAITED = "einops._backends"


class _Backend:
    """What einops needs to know; `register` puts its base class beside it."""

    framework_name = "everygrad"

    def is_appropriate_type(self, x: Any) -> bool:
        return isinstance(x, Tensor)

    def from_numpy(self, x: Any) -> Tensor:
        return tensor(x)

    def to_numpy(self, x: Tensor) -> Any:
        return np.asarray(x.detach().to("cpu").numpy())

    def arange(self, start: int, stop: int) -> Tensor:
        return arange(start, stop)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute_dims(axes)

    def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
        return stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return x.expand_dims(new_position)

    def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
        return x.tile(repeats)

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        return concat(tensors, axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.dtype.is_differentiable

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return REGISTRY["einsum"].function(pattern, *x)


def register(backends: ModuleType) -> type:
    """The backend as a subclass of the one in einops' module of them, where einops looks for it."""
    return type("EverygradBackend", (_Backend, backends.AbstractBackend), {})


class _Waiting:
    """A finder of modules: registers the backend when einops is imported, and is gone. Its base
    class would be `importlib.abc.MetaPathFinder`, whose module takes 5 ms to import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                kept.append(register(module))

            spec.loader.__dict__["exec_module"] = run_and_register
        return spec


kept: list[type] = []  # einops sees a subclass for as long as something holds it
if _AWAITED in sys.modules:
    kept.append(register(sys.modules[_AWAITED]))
else:
    sys.meta_path.insert(0, _Waiting())
