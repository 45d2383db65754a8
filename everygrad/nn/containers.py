"""Modules that hold other modules, or parameters: in a row, in a list, in a dict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, OutOfRangeError
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter


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

    def __delitem__(self, index: Any) -> None:
        members = self._members()
        gone = members[index] if isinstance(index, slice) else [vars(self)[self._place(index)]]
        self._rename([m for m in members if not any(m is g for g in gone)])

    def __contains__(self, module: object) -> bool:
        return any(m is module for m in self._members())

    def _rename(self, modules: list[Module]) -> None:
        """Hold these modules, numbered from 0."""
        for name, _ in self._own(Module):
            delattr(self, name)
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def insert(self, index: int, module: Module) -> Self:
        """Put a module before the one at `index`."""
        if not isinstance(module, Module):
            raise ArgumentError(f"insert: takes a Module, got {type(module).__name__}")
        members = self._members()
        members.insert(index, module)
        self._rename(members)
        return self

    def pop(self, index: int = -1) -> Module:
        """Take a module out, the last one by default."""
        module: Module = vars(self)[self._place(index)]
        del self[index]
        return module

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

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add modules by name, in place of those that have these names."""
        for name, module in modules.items():
            self[name] = module

    def pop(self, name: str) -> Module:
        """Take a module out."""
        module = self[name]
        del self[name]
        return module

    def clear(self) -> None:
        """Take all modules out."""
        for name in self.keys():
            del self[name]


# --- parameters ----------------------------------------------------------------------------------


def _as_parameter(value: Any) -> Any:
    """A tensor becomes a parameter; anything else stays what it is."""
    if isinstance(value, Tensor) and not isinstance(value, Parameter):
        return Parameter(value)
    return value


class ParameterList(Module):
    """A list of parameters that a module finds; tensors become parameters.

    >>> import everygrad as eg
    >>> held = eg.nn.ParameterList([eg.ones((2,)), eg.zeros((3,))])
    >>> [name for name, p in held.named_parameters()]
    ['0', '1']
    """

    _size: int

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        self.extend(() if values is None else values)

    def _place(self, index: Any) -> str:
        at = shapes.as_int(index, "ParameterList", "an index")
        if not -self._size <= at < self._size:
            raise OutOfRangeError(
                f"ParameterList: index {at} is out of range for {self._size} parameters"
            )
        return str(at % self._size)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([getattr(self, str(i)) for i in range(self._size)])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ParameterList(list(self)[index])
        return getattr(self, self._place(index))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._place(index), _as_parameter(value))

    def append(self, value: Any) -> Self:
        """Add a parameter at the end."""
        setattr(self, str(self._size), _as_parameter(value))
        self._size += 1
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add parameters at the end."""
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return ", ".join(_shown(str(i), value) for i, value in enumerate(self))


class ParameterDict(Module):
    """A dict of parameters that a module finds; tensors become parameters.

    >>> import everygrad as eg
    >>> held = eg.nn.ParameterDict({"left": eg.ones((2,))})
    >>> held["right"] = eg.zeros((3,))
    >>> list(held.keys())
    ['left', 'right']
    """

    _names: dict[str, None]

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._names = {}
        self.update({} if parameters is None else parameters)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            known = ", ".join(self._names) or "none"
            raise ArgumentError(f"ParameterDict: no parameter {name!r}; there are: {known}")
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._names:
            self._check_name("ParameterDict", name)
        setattr(self, name, _as_parameter(value))
        self._names[name] = None

    def __delitem__(self, name: str) -> None:
        self[name]
        delattr(self, name)
        del self._names[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._names))

    def keys(self) -> list[str]:
        """The names."""
        return list(self._names)

    def values(self) -> list[Any]:
        """The parameters."""
        return [getattr(self, name) for name in self._names]

    def items(self) -> list[tuple[str, Any]]:
        """Names and parameters."""
        return [(name, getattr(self, name)) for name in self._names]

    def get(self, name: str, default: Any = None) -> Any:
        """The parameter of this name, or `default`."""
        return getattr(self, name) if name in self._names else default

    def update(self, parameters: Any) -> None:
        """Add parameters by name, in place of those that have these names."""
        pairs = parameters.items() if hasattr(parameters, "items") else parameters
        for name, value in pairs:
            self[name] = value

    def pop(self, name: str) -> Any:
        """Take a parameter out."""
        value = self[name]
        del self[name]
        return value

    def clear(self) -> None:
        """Take all parameters out."""
        for name in self.keys():
            del self[name]

    def extra_repr(self) -> str:
        return ", ".join(_shown(name, value) for name, value in self.items())


def _shown(name: str, value: Any) -> str:
    shape = f"{type(value).__name__} {value.shape}" if isinstance(value, Tensor) else repr(value)
    return f"({name}): {shape}"
