"""ZeRO: ranks that share a batch also share what training keeps of each parameter.

Level 1 shares the optimiser's state, level 2 the gradients too, level 3 the parameters too. An
optimiser is given `parameters()` of what `shard` returns: for each parameter of the module its
shard, a stretch of its elements as one vector. Rules that look at single elements (SGD, Adam and
most others) do with shards what they do with the whole; rules that look at a parameter's norm or
its rows (LAMB, Muon, Adafactor) refuse them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple, Self
from weakref import WeakSet

from everygrad.autograd.engine import Pass, PassHook, give, renamed
from everygrad.autograd.graph import Node
from everygrad.autograd.modes import CAREFUL, _Mode, _recording, is_grad_enabled, no_grad
from everygrad.autograd.saved_tensor_hooks import Recorder, recorder
from everygrad.core.context import tracing
from everygrad.core.scopes import Setting, Settings
from everygrad.core.tensor import Tensor, shared
from everygrad.distributed.background import Rest
from everygrad.distributed.collectives import all_gather, reduce_scatter
from everygrad.distributed.mesh import Mesh
from everygrad.distributed.parallel.buckets import (
    BUCKET_BYTES,
    SMALL_BUCKETS,
    Bucket,
    pieces,
)
from everygrad.distributed.parallel.data_parallel import (
    WITHOUT_GRAPH,
    BatchParallel,
    DataParallel,
    rows_of,
)
from everygrad.distributed.parallel.exchange import share_of_mean
from everygrad.distributed.parallel.shard_parameter import (
    ShardParameter,
    box_size,
    own_memory,
    stretch_of_all,
    whole_box,
)
from everygrad.errors import ArgumentError, GradientError
from everygrad.nn.functions.module_state import LoadedKeys, StateFaults, faults_of
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import tensor, zeros
from everygrad.ops.shape.joining import concat


class _Part(NamedTuple):
    """A parameter of the module and the shard of it that is here; `chunk` elements on each rank,
    the last ones padded with zeros."""

    name: str
    shard: ShardParameter
    shape: tuple[int, ...]
    size: int
    chunk: int


def _part(name: str, p: Parameter, mesh: Mesh, axis: str) -> _Part:
    """The shard of a parameter that this rank has."""
    ranks, index = mesh.axes[axis], mesh.coordinate(axis)
    size = int(p.size)
    chunk = -(-size // ranks)
    start, stop = min(size, index * chunk), min(size, (index + 1) * chunk)
    here = _padded(p.detach().reshape(-1)[start:stop], chunk)
    if isinstance(p, ShardParameter):
        if axis in p.axes or sum(map(box_size, p.boxes)) != size:
            raise ArgumentError(f"shard: {name} is in shards along {', '.join(p.axes)} already")
        axes, whole, boxes = (*p.axes, axis), p.whole, p.boxes
    else:
        axes, whole, boxes = (axis,), p.shape, (whole_box(p.shape),)
    boxes = tuple(stretch_of_all(boxes, start, stop))
    made = ShardParameter(own_memory(here), mesh, axes, whole, boxes, p.requires_grad)
    return _Part(name, made, p.shape, size, chunk)


def _padded(x: Tensor, size: int) -> Tensor:
    missing = size - x.shape[0]
    return concat([x, zeros((missing,), x.dtype, x.device)]) if missing else x


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Vectors one behind the other; of a single one no copy."""
    return parts[0] if len(parts) == 1 else concat(parts)


def _in_chunks(g: Tensor, part: _Part, ranks: int) -> Tensor:
    """A tensor like the parameter as (ranks, chunk)."""
    return _padded(g.reshape(-1), ranks * part.chunk).reshape(ranks, part.chunk)


def _assembled(gathered: Tensor, parts: Sequence[_Part], ranks: int) -> Iterator[Tensor]:
    """The parameters, of what all ranks have of them one after the other."""
    rows = gathered.reshape(ranks, -1)
    at = 0
    for part in parts:
        flat = rows[:, at : at + part.chunk].reshape(-1)
        yield flat[: part.size].reshape(part.shape)
        at += part.chunk


class ShardedState(DataParallel):
    """Levels 1 and 2: every rank has all parameters, and the optimiser's state of its shards.

    Level 1 sums gradients on all ranks and keeps a rank's share of them; level 2 sums each share
    on its rank alone and drops a gradient once its bucket is on its way.
    """

    buckets = SMALL_BUCKETS  # here a bucket on its way is no part of what stays

    def __init__(
        self, module: Module, mesh: Mesh, axis: str, level: int, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self.level = level
        super().__init__(module, mesh, axis, bucket_bytes)
        if level == 2:  # a reduce_scatter has one stage: one is exchanged, and the next is ready
            self._reduction.in_flight = 2
        self._parts = {id(p): _part(name, p, mesh, axis) for name, p in self._trained}
        for part in self._parts.values():
            part.shard.register_post_accumulate_grad_hook(_OutsideOfGraphs())
        self._fresh = _Fresh()

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The shards, under the names of their parameters: what an optimiser takes."""
        dot = f"{prefix}." if prefix else ""
        for name, p in self.module.named_parameters():
            part = self._parts.get(id(p))
            yield dot + name, p if part is None else part.shard

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        self.refresh()
        made = super().__deepcopy__(memo)
        for part, other in zip(self._parts.values(), made._parts.values(), strict=True):
            memo[id(part.shard)] = other.shard
        return made

    def _around(self, module: Module) -> Any:
        return ShardedState(module, self.mesh, self.axis, self.level, self.bucket_bytes)

    def values_changed(self) -> None:
        """The shards were given values from outside: the whole parameters follow."""
        self._fresh.moved()

    def refresh(self) -> None:
        """Give the module's parameters the values of the shards, where those have moved on."""
        tracer = tracing.get()
        if tracer is None and not self._fresh.stale:
            return
        with no_grad():
            for bucket in reversed(self._reduction.buckets):  # first what forward needs first
                parts = [self._parts[id(p)] for _, p in bucket.held]
                here = _joined([part.shard.detach() for part in parts])
                gathered = all_gather(here, self.mesh, self.axis)
                wholes = _assembled(gathered, parts, self.ranks)
                for (_, p), part, whole in zip(bucket.held, parts, wholes, strict=True):
                    p.rebind(shared(whole), p._node)
                    if tracer is not None:
                        tracer.remakes(p)
                    elif part.size == self.ranks * part.chunk:
                        self._share_memory(p, part)
        self._fresh.stale = False

    def _share_memory(self, p: Parameter, part: _Part) -> None:
        """Let the shard be a view of the whole, which has its values until the next step."""
        start = self.mesh.coordinate(self.axis) * part.chunk
        here = p.detach().reshape(-1)[start : start + part.chunk]
        part.shard.rebind(here._data, part.shard._node)

    def _flat(self, bucket: Bucket) -> Tensor:
        if self.level == 1:
            return super()._flat(bucket)
        weighted = self._weighted(bucket)
        rows = [
            _in_chunks(g, self._parts[id(p)], self.ranks)
            for (_, p), g in zip(bucket.sent, weighted, strict=True)
        ]
        for flags in self._flags(bucket):
            rows.append(flags.broadcast_to((self.ranks, flags.shape[0])))
        return (rows[0] if len(rows) == 1 else concat(rows, 1)).reshape(-1)

    def _holds_gradients(self, but: Tensor) -> bool:
        return any(part.shard.grad is not None for part in self._parts.values())

    def _reduce(self, bucket: Bucket, flat: Tensor) -> Tensor | Rest:
        if self.level == 1:
            return super()._reduce(bucket, flat)
        return reduce_scatter(flat, self._lane_mesh, self.axis)

    def _finish(self, bucket: Bucket, flat: Tensor) -> None:
        self._fresh.moved()
        parts = [self._parts[id(p)] for _, p in bucket.sent]
        used = self._reduced(bucket, flat[-len(parts) :])
        if self.level == 1:
            whole = pieces(flat, [part.shape for part in parts])
            index = self.mesh.coordinate(self.axis)
            found = [
                _in_chunks(g, part, self.ranks)[index] for g, part in zip(whole, parts, strict=True)
            ]
        else:
            found = list(pieces(flat, [(part.chunk,) for part in parts]))
        for part, some, g in zip(parts, used, found, strict=True):
            if some:
                give(part.shard, g)
        for _, p in bucket.held:
            p.grad = None

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """The whole values under the module's own names; all ranks must call it."""
        self.refresh()
        return super().state_dict(prefix)

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        """Give the module and the shards their values; every rank must load the same."""
        loaded = super().load_state_dict(state_dict, strict)
        for p in self.module.parameters():
            if (part := self._parts.get(id(p))) is not None:
                rows = _in_chunks(p.detach(), part, self.ranks)
                here = own_memory(rows[self.mesh.coordinate(self.axis)])
                part.shard.rebind(here._data, part.shard._node)
        self._fresh.stale = False
        return loaded


class _OutsideOfGraphs(PassHook):
    """Of the shards at levels 1 and 2, which are given gradients of what is in the graph."""

    def ready(self, work: Pass, x: Tensor) -> None:
        """A penalty on the shard itself."""

    def asked(self, reached: bool, accumulates: bool) -> None:
        if not reached:
            raise GradientError(
                "backward: a shard of ZeRO 1 or 2 is in no graph; ask for what it is a part of, "
                "a parameter of the module inside: model.module.parameters()"
            )


class _OfMeans(PassHook):
    """Of the shards at level 3, whose gradients are means over ranks."""

    def ready(self, work: Pass, x: Tensor) -> None:
        if work.create_graph:
            raise GradientError(WITHOUT_GRAPH.format("ShardedParameters"))


class _Fresh:
    """Whether the shards have moved on since the module's parameters were given their values."""

    stale = False

    def moved(self) -> None:
        """The optimiser is about to move the shards; in a compiled function, at each call."""
        if (tracer := tracing.get()) is None:
            self.stale = True
        elif not tracer.acts_after(self):
            tracer.after(self, self.moved)


# --- level 3 -------------------------------------------------------------------------------------


_running: ContextVar[ShardedParameters | None] = ContextVar("everygrad_sharded", default=None)


class _Layer:
    """A module with parameters of its own, and how to gather them."""

    def __init__(self, owner: ShardedParameters, module: Module, parts: Sequence[_Part]) -> None:
        self.owner = owner
        self.module = module
        self.parts = tuple(parts)
        self.inside = module.forward
        self.awaited: WeakSet[_Dropped] = WeakSet()  # nodes that will ask for the parameters again

    def gather(self, parts: Sequence[_Part]) -> list[Tensor]:
        """The whole parameters; their gradients are summed into the shards."""
        owner = self.owner
        here = _joined([renamed(part.shard) for part in parts])  # as the vectors that they are
        gathered = all_gather(share_of_mean(here, owner.ranks), owner.mesh, owner.axis)
        return list(_assembled(gathered, parts, owner.ranks))

    def read(self, name: str) -> Any:
        """The module's attribute: whole where a forward reads it, be it another module's."""
        held = vars(self.module)[name]
        if not (isinstance(held, ShardParameter) and _running.get() is self.owner):
            return held
        number = next(i for i, part in enumerate(self.parts) if part.name == name)
        (whole,) = self.gather(self.parts[number : number + 1])
        if isinstance(by := recorder.get(), _Dropper):
            by.add(self, number, whole)
        return whole

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward, with whole parameters in place of the shards."""
        wholes = self.gather(self.parts)
        names = [part.name for part in self.parts]
        held = vars(self.module)
        shards = {name: held[name] for name in names}
        plain = not is_grad_enabled() or recorder.get() is not None
        self.owner.order.append(self)
        try:
            held.update(zip(names, wholes, strict=True))
            with Setting(_running, self.owner), nullcontext() if plain else _dropping(self, wholes):
                return self.inside(*args, **kwargs)
        finally:
            held.update(shards)

    def again(self) -> list[Any]:
        """The payloads of the whole parameters, gathered again for backward."""
        latest = self.owner.latest
        found = latest.get(self)
        if found is None:
            latest.clear()
            found = latest[self] = self.gathered()  # of one layer at a time
        if tracing.get() is not None:  # while this one is used, the next one is on its way
            next_one = self.owner.before(self)
            if next_one is not None and next_one not in latest:
                latest[next_one] = next_one.gathered()
        return found

    def gathered(self) -> list[Any]:
        """The payloads of the whole parameters, by ops of their own where a function is traced:
        what was made of the shards for forward is not kept until backward."""
        tracer = tracing.get()
        with no_grad(), nullcontext() if tracer is None else tracer.again():
            return [t._data for t in self.gather(self.parts)]


class _Shared:
    """The attribute of a module that is a shard at rest; `vars` has what there is of it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, kind: Any = None) -> Any:
        if module is None or self.name not in vars(module):
            raise AttributeError(self.name)
        layer: _Layer = vars(module)["forward"].__self__
        return layer.read(self.name)

    def __set__(self, module: Any, value: Any) -> None:
        vars(module)[self.name] = value

    def __delete__(self, module: Any) -> None:
        del vars(module)[self.name]


@cache
def _with_shared(kind: Any, names: tuple[str, ...]) -> Any:
    """The class of a module whose attributes are gathered when they are read."""
    inside = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**inside, **{name: _Shared(name) for name in names}})


_Place = tuple[_Layer, int]  # a layer, and the number of a parameter of it


class _Dropped:
    """Stands in a node for saved values of which some are parameters to be gathered again."""

    __slots__ = ("__weakref__", "places", "values")

    def __init__(self, values: tuple[Any, ...], places: dict[int, _Place]) -> None:
        self.values = values
        self.places = places
        for layer, _ in places.values():
            layer.awaited.add(self)

    def fulfil(self, node: Node) -> None:
        saved = list(self.values)
        for i, (layer, number) in self.places.items():
            saved[i] = layer.again()[number]
        for layer, _ in self.places.values():
            layer.awaited.discard(self)
            if not layer.awaited:  # nobody else will ask
                layer.owner.latest.pop(layer, None)
        node.saved = tuple(saved)


class _Dropper(Recorder):
    """Keeps whole parameters, of a layer and what it reads of others, out of the graph."""

    __slots__ = ("places", "wholes")

    def __init__(self, layer: _Layer, wholes: Sequence[Tensor]) -> None:
        self.wholes: list[Tensor] = []  # so that no id is given to another
        self.places: dict[int, _Place] = {}
        for i, whole in enumerate(wholes):
            self.add(layer, i, whole)

    def add(self, layer: _Layer, number: int, whole: Tensor) -> None:
        self.wholes.append(whole)
        self.places[id(whole._data)] = (layer, number)

    def saving(self, node: Node, values: tuple[Any, ...], inputs: Sequence[Any]) -> Any:
        places = {i: self.places[id(v)] for i, v in enumerate(values) if id(v) in self.places}
        if not places:
            return values
        kept = tuple(None if i in places else v for i, v in enumerate(values))
        return _Dropped(kept, places)


class _dropping(_Mode):  # noqa: N801  # a context manager, read as a phrase
    def __init__(self, layer: _Layer, wholes: Sequence[Tensor]) -> None:
        super().__init__()
        self.by = _Dropper(layer, wholes)

    def settings(self) -> Settings:
        return ((recorder, self.by), (_recording, CAREFUL))


class ShardedParameters(BatchParallel):
    """Level 3: at rest a rank has its shards alone. A layer gathers its parameters when it is
    called, drops them, and gathers them again for its backward; gradients are summed into shards.
    Where a forward reads a parameter of another module, that one is gathered then.

    In a compiled function the next layer's parameters are on their way meanwhile.
    """

    level = 3

    def __init__(
        self, module: Module, mesh: Mesh, axis: str, broadcast_buffers: bool = True
    ) -> None:
        super().__init__(module, mesh, axis)
        self.broadcast_buffers = broadcast_buffers
        self.latest: dict[_Layer, list[Any]] = {}
        self.order: list[_Layer] = []  # as the latest forward called them
        made: dict[int, _Part] = {}
        self._parts: list[_Part] = []
        for prefix, owner in list(module.named_modules()):
            own = [(n, v) for n, v in vars(owner).items() if isinstance(v, Parameter)]
            parts = []
            for name, p in own:
                if id(p) not in made:
                    made[id(p)] = _part(name, p, mesh, axis)
                full = f"{prefix}.{name}" if prefix else name
                self._parts.append(made[id(p)]._replace(name=full))
                parts.append(made[id(p)]._replace(name=name))
                vars(owner)[name] = parts[-1].shard
            if parts:
                layer = _Layer(self, owner, parts)
                vars(owner)["forward"] = layer.forward
                kind: Any = type(owner)
                owner.__class__ = _with_shared(kind, tuple(part.name for part in parts))
        Module.changes += 1
        self._everything = dict(module.named_parameters())
        self._refuse_graphs()

    def _refuse_graphs(self) -> None:
        for p in self._everything.values():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(_OfMeans())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.check_unchanged()
        rows = rows_of(args, kwargs)
        self.check_rows(rows)
        self.latest.clear()
        self.order.clear()
        if self.training and self.broadcast_buffers:
            self.share_buffers()
        with Setting(_running, self), self.drawing(rows):
            return self.module(*args, **kwargs)

    def before(self, layer: _Layer) -> _Layer | None:
        """The layer whose backward comes after this one's, if it will ask for its parameters."""
        while self.order:
            if self.order.pop() is layer:
                break
        return self.order[-1] if self.order and self.order[-1].awaited else None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are summed into the shards at every backward: there is nothing to put off."""
        yield

    def join(self, step: Any) -> Any:
        """Not at this level."""
        raise ArgumentError(
            "join: at level 3 every layer gathers its parameters, also from ranks that have no "
            "rows left; share at level 1 or 2, or give all ranks as many rows"
        )

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """The whole values under the module's own names; all ranks must call it."""
        found = self.module.state_dict()
        with no_grad():
            for part in self._parts:
                gathered = all_gather(part.shard.detach(), self.mesh, self.axis)
                (found[part.name],) = _assembled(gathered, [part], self.ranks)
        return {prefix + name: t for name, t in found.items()}

    def state_faults(self, state_dict: Mapping[str, Any]) -> StateFaults:
        """What does not fit the whole values."""
        own = {name: t.shape for name, t in self.module.state_dict().items()}
        return faults_of({**own, **{part.name: part.shape for part in self._parts}}, state_dict)

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> LoadedKeys:
        """Give the shards and buffers their values; every rank must load the same."""
        faults = self.state_faults(state_dict)
        faults.refuse("load_state_dict", strict)
        for part in self._parts:
            if part.name in state_dict:
                given = tensor(state_dict[part.name], part.shard.dtype, part.shard.device)
                here = _in_chunks(given, part, self.ranks)[self.mesh.coordinate(self.axis)]
                part.shard.rebind(own_memory(here)._data, part.shard._node)
        for name, b in self.module.named_buffers():
            if name in state_dict:
                b.rebind(tensor(state_dict[name], b.dtype, b.device)._data, None)
        return LoadedKeys(faults.missing, faults.unexpected)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made: Self = object.__new__(type(self))
        memo[id(self)] = made
        self.latest.clear()
        self.order.clear()
        vars(made).update(deepcopy(vars(self), memo))
        made._refuse_graphs()
        return made


def shard(
    module: Module,
    mesh: Mesh,
    axis: str = "data",
    level: int = 1,
    bucket_bytes: int = BUCKET_BYTES,
) -> ShardedState | ShardedParameters:
    """The module with what training keeps of it shared by the ranks along an axis of the mesh.

    level  1: the optimiser's state; 2: gradients too; 3: parameters too, gathered layer by layer

    Give an optimiser `parameters()` of the result, and call the result in place of the module.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> model = eg.distributed.shard(eg.nn.Linear(3, 2), mesh, "data", level=3)
    >>> [(name, p.shape) for name, p in model.named_parameters()]
    [('weight', (6,)), ('bias', (2,))]
    """
    if level not in (1, 2, 3) or isinstance(level, bool):
        raise ArgumentError(f"shard: level must be 1, 2 or 3, got {level!r}")
    if level == 3:
        return ShardedParameters(module, mesh, axis)
    return ShardedState(module, mesh, axis, level, bucket_bytes)


__all__ = ["ShardedParameters", "ShardedState", "shard"]
