"""Pipelines: the stages of a model on different ranks, and a batch in microbatches through them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.core.context import tracing
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.distributed.collectives import broadcast, recv, send
from everygrad.distributed.mesh import Mesh
from everygrad.distributed.parallel.buckets import Lane
from everygrad.distributed.parallel.clipping import OtherStages, OtherStagesParts
from everygrad.distributed.parallel.data_parallel import (
    BatchParallel,
    DataParallel,
    refuse_changes,
)
from everygrad.distributed.parallel.schedules import SCHEDULES, acts_of
from everygrad.distributed.parallel.shard_parameter import ShardParameter
from everygrad.distributed.placements import extent
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import tensor, zeros

_MOST_AXES = 8  # of what passes from stage to stage
_DTYPES = [d for d in dtypes.FLOATS if d.is_float]


class Pipeline(Module):
    """The stages of a model that this rank has; made by `pipeline`."""

    names_state = True

    def __init__(
        self,
        stages: Sequence[Any],
        microbatches: int,
        schedule: str,
        mesh: Mesh,
        axis: str,
    ) -> None:
        super().__init__()
        self.mesh = mesh
        self.axis = axis
        self.microbatches = microbatches
        self.schedule = schedule
        self.count = len(stages)
        ranks, rank = mesh.axes[axis], mesh.coordinate(axis)
        self.numbers = tuple(range(rank, self.count, ranks))  # of the stages that are here
        self.chunks: list[Module] = []
        for number in self.numbers:
            made = stages[number]
            module = made if isinstance(made, Module) else made()
            if not isinstance(module, Module):
                raise ArgumentError(
                    f"pipeline: stage {number} must be a Module or a function that makes one, "
                    f"got {type(module).__name__}"
                )
            self.add_module(str(number), module)
            self.chunks.append(module)
        # each way into each stage is a channel: a rank that waits in one can send in another
        self._ways = {
            (way, number): mesh.channel(f"{way} into stage {number}")
            for number in range(self.count)
            for way in ("forward", "backward")
        }
        self._lane = Lane("everygrad-pipeline")
        self._here: dict[tuple[str, int], deque[Tensor]] = {}  # between two stages of this rank
        self._kinds: dict[Any, tuple[Shape, Any]] = {}  # of what arrives, by what began
        self._everything = dict(self.named_parameters())
        for p in self._everything.values():
            kind = OtherStagesParts if isinstance(p, ShardParameter) else OtherStages
            p.others = kind(mesh, axis)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Those of the stages that are here, by the number of the stage."""
        dot = f"{prefix}." if prefix else ""
        seen = set()  # two stages that are here may share a parameter
        for number, module in zip(self.numbers, self.chunks, strict=True):
            for name, p in module.named_parameters(f"{dot}{number}", recurse):
                if id(p) not in seen:
                    seen.add(id(p))
                    yield name, p

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Those of the stages that are here, by the number of the stage."""
        dot = f"{prefix}." if prefix else ""
        for number, module in zip(self.numbers, self.chunks, strict=True):
            yield from module.named_buffers(f"{dot}{number}", recurse)

    def values_changed(self) -> None:
        """The values of parameters were given from outside."""
        for module in self.chunks:
            if isinstance(module, BatchParallel):
                module.values_changed()

    # --- one step --------------------------------------------------------------------------------

    def step(self, loss: Callable[[Tensor, Any], Tensor], x: Tensor, y: Any) -> Tensor:
        """Forward and backward of a batch: gradients are added to `.grad`, the loss is returned.

        loss  of the last stage's result and the targets of a microbatch, a mean over its rows
        x, y  the batch and its targets, the same on all ranks of the pipeline

        >>> import everygrad as eg
        >>> mesh = eg.distributed.Mesh({"pipe": 1})
        >>> pipe = eg.distributed.pipeline([eg.nn.Linear(2, 1)], 2, mesh=mesh)
        >>> pipe.step(eg.nn.functional.mse_loss, eg.ones((4, 2)), eg.ones((4, 1))).shape
        ()
        """
        refuse_changes("pipeline", self, self._everything)
        rows = self._rows("step", x)
        spans = [extent(rows, self.microbatches, i) for i in range(self.microbatches)]
        run = _Run(self, loss, x, y, spans)
        acts = acts_of(
            self.schedule, self.mesh.axes[self.axis], self.mesh.coordinate(self.axis),
            len(self.chunks), self.microbatches,
        )  # fmt: skip
        wrappers = [m for c in self.chunks for m in c.modules() if isinstance(m, DataParallel)]
        with ExitStack() as quiet:
            for module in wrappers:
                quiet.enter_context(module.no_sync())
            for act in acts:
                (run.forward if act.forward else run.backward)(act.chunk, act.microbatch)
        run.finish()
        for module in reversed(wrappers):  # what is inside of another one first
            module.sync_gradients()
        return self._from_last(run, run.total)

    def forward(self, x: Tensor) -> Tensor:
        """The result of the last stage on every rank, without a graph."""
        with no_grad():
            run = _Run(self, None, x, None, [(0, self._rows("forward", x))])
            out: Tensor | None = None
            for chunk in range(len(self.chunks)):
                out = run.forward(chunk, 0)
            run.finish()
            return self._from_last(run, out if self.numbers[-1] == self.count - 1 else None)

    def _rows(self, what: str, x: Tensor) -> int:
        """The rows of a batch, of which all ranks must have as many."""
        if tracing.get() is not None:
            raise ArgumentError(
                f"pipeline: {what}() talks to other ranks by turns; call it eagerly, and compile "
                f"the stages: pipeline([eg.jit(stage), ...])"
            )
        group = self.mesh.group(self.axis)
        group.compare(f"{what} of a pipeline on a batch of {x.dtype}{list(x.shape)}")
        least = self.microbatches if what == "step" else 1
        if not x.ndim or x.shape[0] < least:
            raise ShapeError(
                f"pipeline: a batch of shape {x.shape} cannot be {self.microbatches} microbatches"
            )
        return x.shape[0]

    def _from_last(self, run: _Run, value: Tensor | None) -> Tensor:
        """What the last stage has, on every rank."""
        shape, dtype = run.kind_of_result(value)
        out = zeros(shape, dtype, run.x.device) if value is None else value
        place = (self.count - 1) % self.mesh.axes[self.axis]
        with no_grad():
            return broadcast(out, self.mesh, self.axis, source=place)

    # --- what passes between stages --------------------------------------------------------------

    def give(self, way: str, to: int, value: Tensor) -> Any:
        """Send to the rank of a stage, while this one goes on."""
        channel = self._ways[way, to]
        place = to % self.mesh.axes[self.axis]
        given = value.detach()
        if to in self.numbers:
            self._here.setdefault((way, to), deque()).append(given)
            return None

        def work() -> None:
            with no_grad():
                send(given, channel, self.axis, to=place)

        return self._lane.start(work, given.device)

    def take(self, way: str, number: int, shape: Shape, dtype: Any, device: str) -> Tensor:
        """What was sent into a stage by the one before it, or behind it."""
        channel = self._ways[way, number]
        source = number - 1 if way == "forward" else number + 1
        if source in self.numbers:
            return self._here[way, number].popleft()
        place = source % self.mesh.axes[self.axis]
        with no_grad():
            return recv(zeros(shape, dtype, device), channel, self.axis, source=place)


class _Run:
    """One batch on its way through the stages of one rank."""

    def __init__(
        self,
        pipe: Pipeline,
        loss: Callable[[Tensor, Any], Tensor] | None,
        x: Tensor,
        y: Any,
        spans: Sequence[tuple[int, int]],
    ) -> None:
        self.pipe = pipe
        self.loss = loss
        self.x = x
        self.y = y
        self.spans = spans
        self.held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # inputs and results
        self.sent: list[Any] = []
        self.total: Tensor | None = None

    def forward(self, chunk: int, microbatch: int) -> Tensor:
        """One microbatch through one stage; what comes out goes on to the next."""
        pipe, number = self.pipe, self.pipe.numbers[chunk]
        start, stop = self.spans[microbatch]
        if number == 0:
            given = self.x[start:stop]
        else:
            kind = self._kind(number, stop - start)
            given = pipe.take("forward", number, *kind, self.x.device)
            if self.loss is not None:
                given = given.requires_grad_()
        out: Tensor = pipe.chunks[chunk](given)
        if not isinstance(out, Tensor):
            raise ArgumentError(
                f"pipeline: a stage takes and gives one tensor; stage {number} "
                f"({type(pipe.chunks[chunk]).__name__}) gave {type(out).__name__}"
            )
        if number < pipe.count - 1:
            self._announce(number, stop - start, out)
            self.sent.append(pipe.give("forward", number + 1, out))
        elif self.loss is not None:
            part = self.loss(out, self.y[start:stop]) * ((stop - start) / self.spans[-1][1])
            if part.ndim:
                raise ShapeError(f"pipeline: the loss must be one number, got shape {part.shape}")
            self.total = part.detach() if self.total is None else self.total + part.detach()
            out = part
        if self.loss is not None:
            self.held[chunk, microbatch] = (given, out)
        return out

    def backward(self, chunk: int, microbatch: int) -> None:
        """The gradient of one microbatch through one stage, and back to the one before."""
        pipe, number = self.pipe, self.pipe.numbers[chunk]
        given, out = self.held.pop((chunk, microbatch))
        g = None
        if number < pipe.count - 1:
            g = pipe.take("backward", number, out.shape, out.dtype, out.device)
        if out.requires_grad:  # else the first stages have nothing that is trained
            out.backward(g)
        if number:
            g = given.grad
            back = zeros(given.shape, given.dtype, given.device) if g is None else g
            self.sent.append(pipe.give("backward", number - 1, back))

    def finish(self) -> None:
        """Wait until all that was sent is on its way; raises what a sender raised."""
        for future in self.sent:
            if future is not None:
                future.result()

    # --- shapes: sent once for each kind of batch ------------------------------------------------

    def _key(self, number: int, rows: int) -> Any:
        return (number, rows, self.x.shape[1:], self.x.dtype, self.loss is None)

    def _announce(self, number: int, rows: int, out: Tensor) -> None:
        key = self._key(number + 1, rows)
        if key not in self.pipe._kinds:
            self.pipe._kinds[key] = (out.shape, out.dtype)
            if number + 1 not in self.pipe.numbers:  # else this rank knows already
                self.sent.append(self.pipe.give("forward", number + 1, _described(out)))

    def _kind(self, number: int, rows: int) -> tuple[Shape, Any]:
        key = self._key(number, rows)
        known = self.pipe._kinds.get(key)
        if known is None:
            words = self.pipe.take("forward", number, (_MOST_AXES + 2,), "int64", "cpu")
            dtype, ndim, *sizes = words.tolist()
            known = self.pipe._kinds[key] = (tuple(sizes[:ndim]), _DTYPES[dtype])
        return known

    def kind_of_result(self, out: Tensor | None) -> tuple[Shape, Any]:
        """The shape and dtype of the last stage's result, which it tells all."""
        pipe = self.pipe
        words = _described(out) if out is not None else zeros((_MOST_AXES + 2,), "int64")
        place = (pipe.count - 1) % pipe.mesh.axes[pipe.axis]
        dtype, ndim, *sizes = broadcast(words, pipe.mesh, pipe.axis, source=place).tolist()
        return tuple(sizes[:ndim]), _DTYPES[dtype]


def _described(out: Tensor) -> Tensor:
    """The dtype and shape of a tensor, in a tensor of one shape."""
    if out.dtype not in _DTYPES or out.ndim > _MOST_AXES:
        raise DtypeError(
            f"pipeline: what passes between stages is floating point of at most {_MOST_AXES} axes, "
            f"got {out.dtype}{list(out.shape)}"
        )
    words = np.zeros((_MOST_AXES + 2,), np.int64)
    words[:2] = _DTYPES.index(out.dtype), out.ndim
    words[2 : 2 + out.ndim] = out.shape
    return tensor(words)


def _refuse_ties(stages: Sequence[Any], ranks: int) -> None:
    """Raise where two ranks would each train a copy of one parameter."""
    seen: dict[int, tuple[int, str]] = {}
    for number, stage in enumerate(stages):
        inside = stage.module if isinstance(stage, BatchParallel) else stage
        named = inside.named_parameters() if isinstance(inside, Module) else ()
        for name, p in named:
            first, known = seen.setdefault(id(p), (number, name))
            if first % ranks != number % ranks:
                raise ArgumentError(
                    f"pipeline: {name} of stage {number} is {known} of stage {first} too, on "
                    f"another rank: each would train a copy of its own; give the stages parameters "
                    f"of their own, or put both on one rank by the interleaved schedule"
                )


def pipeline(
    stages: Sequence[Any],
    microbatches: int,
    schedule: str = "1f1b",
    mesh: Mesh | None = None,
    axis: str = "pipe",
) -> Pipeline:
    """The stages of a model spread over the ranks along an axis of the mesh.

    stages        modules, or functions that make them, of which each rank keeps (or makes) its own;
                  each takes and gives one tensor
    microbatches  how many parts of a batch are on their way at once
    schedule      "gpipe", "1f1b", or "interleaved", where each rank has several stages

    `step(loss, x, y)` of the result is forward and backward. Stages may be wrapped in
    `DataParallel` or by `shard`, and have tensor parallel layers.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"pipe": 1})
    >>> pipe = eg.distributed.pipeline([eg.nn.Linear(2, 3)], 2, "gpipe", mesh)
    >>> [name for name, p in pipe.named_parameters()]
    ['0.weight', '0.bias']
    """
    if schedule not in SCHEDULES:
        raise ArgumentError(
            f"pipeline: schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}"
        )
    if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
        raise ArgumentError(f"pipeline: microbatches must be at least 1, got {microbatches!r}")
    if mesh is None:
        raise ArgumentError('pipeline: say on which mesh, such as mesh=Mesh({"pipe": 4})')
    ranks = mesh.axes[axis] if axis in mesh.axes else mesh.coordinate(axis)
    count = len(stages)
    several = schedule == "interleaved"
    if count % ranks or count < ranks or (count > ranks and not several):
        wanted = f"a multiple of {ranks}" if several else f"{ranks}, one for each rank"
        raise ArgumentError(f"pipeline: the number of stages must be {wanted}, got {count}")
    acts_of(schedule, ranks, 0, count // ranks, microbatches)  # raises what does not fit
    _refuse_ties(stages, ranks)
    return Pipeline(stages, microbatches, schedule, mesh, axis)
