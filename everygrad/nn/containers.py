"""Modules that hold other modules: in a row, in a list, in a dict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from everygrad.core import shapes
from everygrad.errors import ArgumentError, OutOfRangeError
from everygrad.nn.module import Module


class _Row(Module):
    """Modules under the names "0", "1", ...: what Sequential and ModuleList share."""

    def _members(self) -> list[Module]:
        return [module for _, module in self._own(Module)]

    def _place(self, index: Any) -> str:
        name, count = type(self).__name__, len(self)
        at = shapes.as_int(index, name, "an index")
        if not -count <= at < count:
            raise OutOfRangeError(f"{name}: index {at} is out of range for {count} modules")
        return self._own(Module)[at][0]

    def __len__(self) -> int:
        return len(self._members())

    def __iter__(self) -> Iterator[Module]:
        return iter(self._members())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(*self._members()[index])
        return vars(self)[self._place(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(self._place(index), module)

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self


class Sequential(_Row):
    """Modules called one after the other; a dict instead of modules gives them names.

    >>> import everygrad as eg
    >>> from everygrad import nn
    >>> nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            named = list(modules[0].items())
        else:
            named = [(str(i), m) for i, m in enumerate(modules)]  # type: ignore[misc]  # checked below
        for name, module in named:
            self.add_module(name, module)

    def forward(self, x: Any) -> Any:
        for module in self._members():
            x = module(x)
        return x


class ModuleList(_Row):
    """A list of modules whose parameters are found; it has no forward of its own."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ModuleList(self._members()[index])
        return super().__getitem__(index)


class ModuleDict(Module):
    """A dict of modules whose parameters are found; it has no forward of its own."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        for name, module in (modules or {}).items():
            self[name] = module

    def __getitem__(self, name: str) -> Module:
        found = vars(self).get(name)
        if not isinstance(found, Module):
            known = ", ".join(self.keys()) or "none"
            raise ArgumentError(f"ModuleDict: no module {name!r}; there are: {known}")
        return found

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise ArgumentError(f"ModuleDict: no module {name!r} to delete")
        delattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """The names."""
        return [name for name, _ in self._own(Module)]

    def values(self) -> list[Module]:
        """The modules."""
        return [module for _, module in self._own(Module)]

    def items(self) -> list[tuple[str, Module]]:
        """Names and modules."""
        return self._own(Module)
