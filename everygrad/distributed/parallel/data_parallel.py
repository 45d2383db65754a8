"""Data parallel training: every rank has the module and its share of the batch, and gradients are
averaged while backward runs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from typing import Any, Self

import numpy as np

from everygrad.autograd.engine import Pass, PassHook
from everygrad.autograd.graph import Leaf
from everygrad.autograd.modes import is_grad_enabled, no_grad
from everygrad.autograd.trees import flatten
from everygrad.core.context import tracing
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.distributed.background import Rest
from everygrad.distributed.collectives import all_reduce, begun_all_reduce, broadcast
from everygrad.distributed.mesh import Mesh
from everygrad.distributed.parallel.buckets import (
    BUCKET_BYTES,
    BUCKETS,
    Bucket,
    Named,
    Reduction,
    make_buckets,
    pieces,
)
from everygrad.distributed.parallel.sync_batch_norm import SyncBatchNorm
from everygrad.distributed.placements import extent
from everygrad.distributed.records import STATEMENT
from everygrad.errors import ArgumentError, GradientError, ShapeError
from everygrad.nn.embedding import Embedding, EmbeddingBag
from everygrad.nn.functions.module_state import StateFaults
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import tensor, zeros, zeros_like
from everygrad.ops.random.generators import sharded_draws
from everygrad.ops.shape.joining import concat

_AROUND = ((0, 0), (0, 3), (1, 0), (2, 0))  # levels of a wrapper and of one inside, on other axes
WITHOUT_GRAPH = (
    "{}: backward(create_graph=True): the means of gradients over ranks are without a graph; take "
    "derivatives by autograd.grad(), and call backward() on the loss that is made of them"
)


class _State:
    """What changes from step to step; not an attribute of the module itself, which a compiled
    function takes for granted."""

    def __init__(self) -> None:
        self.syncs = True
        self.joining = False
        self.sizes: list[int] | None = None  # rows of each rank, inside join()
        self.awaits_backward = False  # inside join()
        self.unused: tuple[str, ...] = ()
        self.warned: set[tuple[str, ...]] = set()
        self.forwards = 0
        self.passes: Counter[int] = Counter()  # that used the graph of a forward up, by parameter

    def note_forward(self) -> None:
        """A graph is there; in a compiled function, after each call of it."""
        self.forwards += 1
        if (tracer := tracing.get()) is not None and not tracer.acts_after(self):
            tracer.after(self, self.note_forward)


class _Gradients(PassHook):
    """Hands the gradients of a backward pass to a module that shares them with other ranks."""

    def __init__(self, owner: DataParallel) -> None:
        self.owner = owner
        self.work: Pass | None = None
        self.reached: set[int] = set()
        # wrappers inside, on other axes, are given the gradients first, and have them in flight
        self.waits = any(isinstance(m, DataParallel) for m in owner.module.modules())

    def take(self, x: Tensor) -> None:
        """Be given this leaf's gradients, in place of a wrapper that had them before."""
        node = x._node
        assert isinstance(node, Leaf)
        before = node.after_hooks or {}
        same = (self.owner.mesh.number, self.owner.axis)
        node.after_hooks = {
            key: hook
            for key, hook in before.items()
            if not isinstance(hook, _Gradients) or (hook.owner.mesh.number, hook.owner.axis) != same
        }
        x.register_post_accumulate_grad_hook(self)

    def has(self, x: Tensor) -> bool:
        node = x._node
        return isinstance(node, Leaf) and self in (node.after_hooks or {}).values()

    def ready(self, work: Pass, x: Tensor) -> None:
        owner = self.owner
        if not owner._run.syncs:
            return
        if self.work is not work:  # the first of this pass
            owner._begin_backward(work)
            self.work = work
            self.reached.clear()
            work.at_end.append(self.end)
        self.reached.add(id(x))
        state = owner._run
        state.passes[id(x)] += not work.retain_graph
        if state.passes[id(x)] > state.forwards:
            name = type(owner).__name__
            raise GradientError(
                f"{name}: backward reaches {owner._name(x)} without a forward of this wrapper "
                f"before it, so ranks would differ; call the wrapper, or run backward inside "
                f"no_sync()"
            )
        if not self.waits:
            owner._reduction.note(x)

    def asked(self, reached: bool, accumulates: bool) -> None:
        owner = self.owner
        if not accumulates and reached and owner._run.syncs and owner.ranks > 1:
            raise GradientError(
                f"grad: its gradients of a {type(owner).__name__}'s parameters would be those of "
                f"this rank's rows alone; call backward(), or take them inside no_sync() and "
                f"average them by all_reduce"
            )

    def of_all(self, loss: Tensor) -> Tensor:
        owner = self.owner
        if not owner._run.syncs:
            return loss
        return all_reduce(loss.detach(), owner.mesh, owner.axis, "mean")

    def end(self) -> None:
        """What has not come by now will not."""
        self.work = None
        self.owner._end_backward(self.reached)


def refuse_changes(what: str, module: Module, then: dict[str, Parameter]) -> None:
    """Raise where a module's parameters are not those that it had."""
    now = dict(module.named_parameters())
    if now.keys() != then.keys() or any(now[k] is not then[k] for k in now):
        names = sorted(k for k in {*now, *then} if now.get(k) is not then.get(k))
        raise ArgumentError(
            f"{what}: the module was changed after it was wrapped: {', '.join(names)}; change it "
            f"first, or wrap it anew"
        )


def _refuse_changing_weights(what: str, module: Module) -> None:
    """Raise where a layer changes its weights by the rows it is given: ranks are given others."""
    for name, layer in module.named_modules():
        if isinstance(layer, Embedding | EmbeddingBag) and layer.max_norm is not None:
            raise ArgumentError(
                f"{what}: {name or type(layer).__name__} scales rows of its weight down in each "
                f"call, by max_norm, and a rank alone those that its batch has: ranks would come "
                f"to have other weights; give it max_norm=None, and scale between steps"
            )


class BatchParallel(Module):
    """A module on every rank along an axis of a mesh, each with its rows of a batch."""

    names_state = True
    cure = ""  # for batches of different sizes
    level = 0  # of ZeRO

    def __init__(self, module: Module, mesh: Mesh, axis: str) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(module, Module):
            raise ArgumentError(f"{name}: takes a Module, got {type(module).__name__}")
        mesh.coordinate(axis)  # raises where there is no such axis
        if not any(p.requires_grad for p in module.parameters()):
            raise ArgumentError(f"{name}: no parameter of the module requires grad")
        self._refuse_inside(module, mesh, axis)
        self.module = module
        self.mesh = mesh
        self.axis = axis
        if self.ranks > 1:
            _refuse_changing_weights(name, module)
        self._run = _State()
        with no_grad():
            for t in [*module.parameters(), *module.buffers()]:
                t.rebind(broadcast(t.detach(), mesh, axis)._data, t._node)
        self._everything = dict(module.named_parameters())

    def _refuse_inside(self, module: Module, mesh: Mesh, axis: str) -> None:
        """Raise where a module inside is shared in a way that this one does not go around."""
        for place, inner in module.named_modules():
            if isinstance(inner, BatchParallel):
                what = f"{type(self).__name__}: {place or 'the module'} is a {type(inner).__name__}"
                if inner.axis == axis and inner.mesh is mesh:
                    raise ArgumentError(f"{what} along {axis!r} already; wrap it once")
                if (self.level, inner.level) not in _AROUND:
                    raise ArgumentError(
                        f"{what}, which {self.way} does not go around; ZeRO 3 goes inside of "
                        f"DataParallel, and ZeRO 1 and 2 go around it"
                    )

    @property
    def way(self) -> str:
        """What this is called."""
        return f"ZeRO {self.level}" if self.level else "DataParallel"

    @property
    def ranks(self) -> int:
        """How many ranks share a batch."""
        return self.mesh.axes[self.axis]

    def local_batch(self, *batch: Tensor) -> Any:
        """This rank's rows of a batch that every rank has whole; one tensor, or a tuple of them.

        >>> import everygrad as eg
        >>> mesh = eg.distributed.Mesh({"data": 1})
        >>> model = eg.distributed.DataParallel(eg.nn.Linear(2, 1), mesh)
        >>> model.local_batch(eg.ones((4, 2))).shape
        (4, 2)
        """
        made = []
        for t in batch:
            rows = t.shape[0] if t.ndim else 0
            if not t.ndim or (rows % self.ranks and not self._run.joining):
                raise ShapeError(
                    f"local_batch: {rows} rows do not divide over {self.ranks} ranks of "
                    f"{self.axis!r}; drop or add some{self.cure}"
                )
            start, stop = extent(rows, self.ranks, self.mesh.coordinate(self.axis))
            made.append(t[start:stop])
        return made[0] if len(made) == 1 else tuple(made)

    def drawing(self, rows: int | None) -> AbstractContextManager[Any]:
        """A block in which random functions draw by the rows' places in the whole batch."""
        if rows is None or self.ranks == 1:
            return nullcontext()
        sizes = self._run.sizes if self._run.joining else None
        index = self.mesh.coordinate(self.axis)
        first = index * rows if sizes is None else sum(sizes[:index])
        whole = self.ranks * rows if sizes is None else sum(sizes)
        return sharded_draws(0, first, rows, whole)

    def check_rows(self, rows: int | None) -> None:
        """Refuse batches of different sizes, on all ranks: a mean of their gradients is not that of
        the whole batch. Outside of training, and in a compiled function, they are not compared."""
        trains = self.training and is_grad_enabled()
        if rows is not None and trains and tracing.get() is None:
            what = f"forward of {type(self).__name__} on as many rows on each rank"
            self.mesh.group(self.axis).compare(f"{what}: {rows}{self.cure}")

    def check_unchanged(self) -> None:
        """Refuse a module whose parameters are not those that it had."""
        refuse_changes(type(self).__name__, self.module, self._everything)

    def share_buffers(self) -> None:
        """Give all ranks the first one's buffers."""
        with no_grad():
            for b in self.module.buffers():
                b.rebind(broadcast(b, self.mesh, self.axis)._data, None)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Those of the module inside: wrapping changes no names."""
        return self.module.named_parameters(prefix, recurse)

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Those of the module inside."""
        return self.module.named_buffers(prefix, recurse)

    def state_faults(self, state_dict: Mapping[str, Any]) -> StateFaults:
        """Those of the module inside."""
        return self.module.state_faults(state_dict)

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """That of the module inside: wrapping changes no names."""
        return self.module.state_dict(prefix)

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        """Give the module inside its values; every rank must load the same."""
        return self.module.load_state_dict(state_dict, strict)


class DataParallel(BatchParallel):
    """A module whose gradients are averaged over the ranks along an axis of a mesh.

    mesh, axis         the ranks that share a batch; each has its rows of it
    bucket_bytes       gradients travel in buckets of at most so many bytes
    broadcast_buffers  before each forward in training mode, all ranks get the first one's buffers

    The parameters and buffers of the first rank are given to all. Random functions inside draw by
    the rows' places in the whole batch, so that masks are those of one process. Parameters that
    the result does not depend on are named by `unused_parameters` and a warning, and count as 0;
    those that no rank uses keep the gradient they have.

    >>> import everygrad as eg
    >>> model = eg.distributed.DataParallel(eg.nn.Linear(2, 1), eg.distributed.Mesh({"data": 1}))
    >>> model(eg.ones((3, 2))).shape
    (3, 1)
    """

    buckets = BUCKETS
    cure = "; or train inside `with model.join(step):`"

    def __init__(
        self,
        module: Module,
        mesh: Mesh,
        axis: str = "data",
        bucket_bytes: int = BUCKET_BYTES,
        broadcast_buffers: bool = True,
    ) -> None:
        super().__init__(module, mesh, axis)
        self.bucket_bytes = bucket_bytes
        self.broadcast_buffers = broadcast_buffers
        self._trained = [Named(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self._lane_mesh = mesh.channel("gradients")
        self._reduction = Reduction(
            make_buckets(self._trained, bucket_bytes, self.buckets),
            self._flat,
            self._reduce,
            self._finish,
        )
        gradients = _Gradients(self)
        self._gradients = gradients
        for held in self._trained:
            gradients.take(held.parameter)

    def check_unchanged(self) -> None:
        """Also refuse a module that was wrapped anew."""
        super().check_unchanged()
        lost = [h.name for h in self._trained if not self._gradients.has(h.parameter)]
        if lost:
            raise ArgumentError(
                f"{type(self).__name__}: {', '.join(lost)} was wrapped again since, by a wrapper "
                f"that has the gradients now; wrap modules that share a parameter as one"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy of the module, wrapped anew: all ranks must make it."""
        made = self._around(deepcopy(self.module, memo))
        made.training = self.training
        memo[id(self)] = made
        return made

    def _around(self, module: Module) -> Any:
        return DataParallel(module, self.mesh, self.axis, self.bucket_bytes, self.broadcast_buffers)

    # --- forward ---------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        state = self._run
        self.check_unchanged()
        rows = rows_of(args, kwargs)
        trains = is_grad_enabled()
        if state.joining and trains:
            if state.awaits_backward:
                raise ArgumentError(
                    "join: a second forward before the backward of the first; inside join() each "
                    "step is one of both, and what is not trained on is called in no_grad()"
                )
            state.awaits_backward = True
            state.sizes = self._exchange(rows or 0)
        elif state.syncs:
            self.check_rows(rows)
        self.refresh()
        if self.training and self.broadcast_buffers:
            self.share_buffers()
        with self.drawing(rows):
            out = self.module(*args, **kwargs)
        if trains:
            state.note_forward()
        return out

    def refresh(self) -> None:
        """Give the module the parameters that the ranks have come to together."""

    @property
    def unused_parameters(self) -> tuple[str, ...]:
        """The names of the parameters that the latest backward did not reach, on this rank."""
        return self._run.unused

    # --- gradients -------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the block gradients stay on their ranks and add up; the first backward outside
        averages the sums.

        >>> import everygrad as eg
        >>> mesh = eg.distributed.Mesh({"data": 1})
        >>> model = eg.distributed.DataParallel(eg.nn.Linear(2, 1), mesh)
        >>> with model.no_sync():
        ...     model(eg.ones((3, 2))).sum().backward()
        """
        state = self._run
        if state.joining:
            raise ArgumentError(
                "no_sync: inside join(), where gradients are weighted by the rows of one batch; "
                "average each backward there"
            )
        before, state.syncs = state.syncs, False
        try:
            yield
        finally:
            state.syncs = before

    def sync_gradients(self) -> None:
        """Average the gradients now, those that backward passes inside `no_sync()` added up."""
        self._reduction.arm([h.parameter for h in self._trained if h.parameter.grad is None])
        for held in self._trained:
            if held.parameter.grad is not None:
                self._reduction.home[id(held.parameter)].ready.add(id(held.parameter))
        self._reduction.advance()

    def _begin_backward(self, work: Pass) -> None:
        """Expect the gradients of a pass; none of what it cannot reach."""
        if work.create_graph:
            raise GradientError(WITHOUT_GRAPH.format(type(self).__name__))
        if self._run.joining:
            self._run.awaits_backward = False
            if work.held[-1] is not None or self._holds_gradients(work.changed[-1]):
                raise GradientError(
                    "join: there are gradients of an earlier batch, which had other rows; inside "
                    "join() each backward is one step, so call zero_grad() before it"
                )
        trained = [h.parameter for h in self._trained]
        self._reduction.arm([p for p in trained if not work.reaches(p)])

    def _holds_gradients(self, but: Tensor) -> bool:
        """Whether there are gradients already, apart from that of one parameter."""
        return any(p.grad is not None for _, p in self._trained if p is not but)

    def _end_backward(self, reached: set[int]) -> None:
        state = self._run
        state.unused = tuple(h.name for h in self._trained if id(h.parameter) not in reached)
        self._reduction.complete()
        if state.unused and tracing.get() is not None:
            what = f"{type(self).__name__} without gradients of {', '.join(state.unused)}"
            apply(STATEMENT, zeros((1,)), mesh=self._lane_mesh, axis=self.axis, text=what)
        if state.unused and state.unused not in state.warned:
            state.warned.add(state.unused)
            warnings.warn(
                f"{type(self).__name__}: backward does not reach {', '.join(state.unused)}; their "
                f"gradients count as 0",
                stacklevel=2,
            )

    def _name(self, p: Tensor) -> str:
        return next(h.name for h in self._trained if h.parameter is p)

    def _weight(self) -> float:
        """The share of this rank's mean in that of the whole batch."""
        sizes = self._run.sizes if self._run.joining else None
        if sizes is None:
            return 1.0 / self.ranks
        return sizes[self.mesh.coordinate(self.axis)] / max(1, sum(sizes))

    def _flat(self, bucket: Bucket) -> Tensor:
        """The gradients as one vector, and behind them for each whether it was used."""
        parts = [g.reshape(-1) for g in self._weighted(bucket)]
        parts += self._flags(bucket)
        return parts[0] if len(parts) == 1 else concat(parts)

    def _weighted(self, bucket: Bucket) -> list[Tensor]:
        """This rank's share of each mean. In a compiled function unused gradients are left out:
        that is fixed there, so the ranks agree on it (`_end_backward`)."""
        weight = self._weight()
        made = []
        bucket.sent, bucket.used = [], []
        for held in bucket.held:
            p = held.parameter
            used = p.grad is not None and weight > 0
            if used or tracing.get() is None:
                bucket.sent.append(held)
                bucket.used.append(used)
                made.append(p.grad * weight if used and p.grad is not None else zeros_like(p))
            if used:  # its mean takes its place; until then it would lie here twice
                p.grad = None
        return made

    def _flags(self, bucket: Bucket) -> list[Tensor]:
        """None in a compiled function, where ranks agree on what is used."""
        if tracing.get() is not None and bucket.used:
            return []
        p = bucket.held[0].parameter
        return [tensor([float(used) for used in bucket.used] or [0.0], p.dtype, p.device)]

    def _reduced(self, bucket: Bucket, flags: Tensor) -> list[bool]:
        """Which of the gradients that were sent some rank had."""
        return bucket.used if tracing.get() is not None else (flags > 0).tolist()

    def _reduce(self, bucket: Bucket, flat: Tensor) -> Tensor | Rest:
        return begun_all_reduce(flat, self._lane_mesh, self.axis)

    def _finish(self, bucket: Bucket, flat: Tensor) -> None:
        sent = [p for _, p in bucket.sent]
        used = self._reduced(bucket, flat[-len(sent) :])
        for p, some, g in zip(sent, used, pieces(flat, [p.shape for p in sent]), strict=True):
            if some:
                p.grad = g

    # --- uneven batches --------------------------------------------------------------------------

    @contextmanager
    def join(self, step: Callable[[], Any]) -> Iterator[None]:
        """Within the block ranks may have different numbers of rows, and of batches.

        Gradients are weighted by rows, so that they are those of the mean over the whole batch. A
        rank that leaves the block early takes part in the others' steps without rows of its own:
        it gets their gradients and calls `step()`, what the loop does after backward.

        >>> import everygrad as eg
        >>> mesh = eg.distributed.Mesh({"data": 1})
        >>> model = eg.distributed.DataParallel(eg.nn.Linear(2, 1), mesh)
        >>> opt = eg.optim.SGD(model.parameters(), lr=0.1)
        >>> with model.join(opt.step):
        ...     model(eg.ones((3, 2))).mean().backward()
        ...     opt.step()
        """
        state = self._run
        if state.joining:
            raise ArgumentError("join: this block is inside another join() of the same module")
        if tracing.get() is not None:
            raise ArgumentError("join: not inside jit, where the number of batches is not known")
        self._refuse_collectives()
        if not state.syncs:
            raise ArgumentError("join: this block is inside no_sync() of the same module")
        state.joining = True
        try:
            yield
            self._follow(step)
        finally:
            state.joining, state.sizes, state.awaits_backward = False, None, False

    def _refuse_collectives(self) -> None:
        for name, layer in self.module.named_modules():
            if isinstance(layer, SyncBatchNorm) and layer.axis == self.axis and self.ranks > 1:
                raise ArgumentError(
                    f"join: {name or 'the module'} is a SyncBatchNorm, which talks to ranks that "
                    f"have no rows left; give all ranks as many rows, or use a norm of each row "
                    f"(LayerNorm, GroupNorm)"
                )

    def _exchange(self, rows: int) -> list[int]:
        """The number of rows of every rank."""
        own = np.zeros((self.ranks,), np.int64)
        own[self.mesh.coordinate(self.axis)] = rows
        found: list[int] = all_reduce(tensor(own), self.mesh, self.axis).tolist()
        return found

    def _follow(self, step: Callable[[], Any]) -> None:
        """Take part in the steps of ranks that have batches left."""
        while any(sizes := self._exchange(0)):
            self._run.sizes = sizes
            self.refresh()
            if self.broadcast_buffers:
                self.share_buffers()
            for p in self.parameters():  # or what they have in place of them
                p.grad = None
            self._reduction.arm([h.parameter for h in self._trained])
            self._reduction.advance()
            step()


def rows_of(args: Sequence[Any], kwargs: dict[str, Any]) -> int | None:
    """The size of the first axis of the first tensor."""
    leaves, _ = flatten((args, kwargs))
    found = next((t for t in leaves if isinstance(t, Tensor) and t.ndim), None)
    return None if found is None else found.shape[0]
