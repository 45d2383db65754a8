"""Gradients in buckets: each is reduced by one collective, as soon as all of it is there.

Buckets begin with the last parameters, whose gradients come first, and start in one order on all
ranks. In eager mode a thread of its own communicates while backward goes on; in a compiled function
the collectives are ops like all others, and the compiler moves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Any, NamedTuple

from everygrad.autograd.modes import no_grad
from everygrad.core.context import tracing
from everygrad.core.tensor import Tensor
from everygrad.distributed.background import Rest
from everygrad.errors import ArgumentError
from everygrad.nn.parameter import Parameter

BUCKET_BYTES = 25 * 2**20
FEWEST_BYTES = 2**20  # of a bucket: smaller ones take longer for as many bytes
BUCKETS = 8  # that gradients are shared among, within these limits: the first starts early
SMALL_BUCKETS = 32  # where what is under way lies beside what stays: it is to be little of it
IN_FLIGHT = 3  # buckets: one in each of two stages, and the next, so that the link never waits


class Named(NamedTuple):
    """A parameter and its name in the module."""

    name: str
    parameter: Parameter


class Bucket:
    """Parameters of one dtype and device whose gradients travel together."""

    def __init__(self, held: Sequence[Named]) -> None:
        self.held = tuple(held)
        self.ready: set[int] = set()  # ids of parameters whose gradient is complete
        self.sent: list[Named] = []  # what travels now, and whether it has a gradient on this rank
        self.used: list[bool] = []

    @property
    def is_complete(self) -> bool:
        return len(self.ready) == len(self.held)


def make_buckets(named: Sequence[Named], limit: int, count: int = BUCKETS) -> list[Bucket]:
    """The parameters, last ones first, in about `count` buckets of at most `limit` bytes; a larger
    parameter has one for itself."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ArgumentError(f"bucket_bytes must be a positive integer, got {limit!r}")
    total = sum(p.size * p.dtype.itemsize for _, p in named)
    limit = min(limit, max(FEWEST_BYTES, total // count))
    made: list[Bucket] = []
    group: list[Named] = []
    nbytes = 0
    for held in reversed(named):
        p = held.parameter
        size = p.size * p.dtype.itemsize
        fits = not group or (
            nbytes + size <= limit
            and p.dtype is group[0].parameter.dtype
            and p.device == group[0].parameter.device
        )
        if not fits:
            made.append(Bucket(group))
            group, nbytes = [], 0
        group.append(held)
        nbytes += size
    return [*made, Bucket(group)] if group else made


class Lane:
    """Threads that communicate, in the order in which they are asked: one for each stage of what
    is done (`Rest`). Unlike the rank's background threads they may wait for a rank that waits for
    this one: what is sent and what is awaited here goes through channels of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._pools: list[ThreadPoolExecutor] = []
        self._queued: list[Future[Any]] = []

    def start(self, work: Callable[[], Any], device: str = "cpu") -> Future[Any]:
        """Run `work` in this context's name; at once, where a function is traced, or on a device
        that has a queue of its own: then behind all that the threads were asked before."""
        done: Future[Any] = Future()
        self._queued = [earlier for earlier in self._queued if not earlier.done()]
        if tracing.get() is not None or device != "cpu":
            wait(self._queued)  # what they raised is raised where they are waited for
            done.set_result(work())
            return done
        self._queued.append(done)
        self._submit(0, done, work)
        return done

    def _submit(self, stage: int, done: Future[Any], work: Callable[[], Any]) -> None:
        if stage == len(self._pools):
            name = f"{self.name}-{stage}"
            self._pools.append(ThreadPoolExecutor(1, thread_name_prefix=name))
        self._pools[stage].submit(copy_context().run, self._carry_out, stage, done, work)

    def _carry_out(self, stage: int, done: Future[Any], work: Callable[[], Any]) -> None:
        if stage == 0 and not done.set_running_or_notify_cancel():
            return
        try:
            made = work()
            if isinstance(made, Rest):
                self._submit(stage + 1, done, made.work)
            else:
                done.set_result(made)
        except BaseException as error:  # raised where it is waited for
            done.set_exception(error)


class Reduction:
    """The buckets of one module, and how far a backward pass has come with them.

    reduce  (bucket) -> what all ranks make of its gradients; runs on the communicating thread
    finish  (bucket, that) -> None; gives the parameters their gradients, when all are there
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        prepare: Callable[[Bucket], Any],
        reduce: Callable[[Bucket, Any], Any],
        finish: Callable[[Bucket, Any], None],
    ) -> None:
        self.buckets = list(buckets)
        self.prepare = prepare
        self.reduce = reduce
        self.finish = finish
        self.in_flight = IN_FLIGHT
        self.lane = Lane("everygrad-gradients")
        self.home = {id(h.parameter): b for b in self.buckets for h in b.held}
        self.armed = False
        self.started: list[tuple[Bucket, Future[Any]]] = []

    def arm(self, unused: Sequence[Parameter]) -> None:
        """Expect one backward pass, in which these parameters get no gradient."""
        self.reset()
        self.armed = True
        for p in unused:
            self.home[id(p)].ready.add(id(p))

    def reset(self) -> None:
        self.armed = False
        for bucket in self.buckets:
            bucket.ready.clear()
        for _, future in self.started:
            future.cancel()
        self.started = []

    def note(self, p: Tensor) -> None:
        """The gradient of a parameter is complete."""
        bucket = self.home[id(p)]
        bucket.ready.add(id(p))
        self.advance()

    def complete(self) -> None:
        """What has not come by now will not."""
        if self.armed:
            for bucket in self.buckets:
                bucket.ready.update(id(p) for _, p in bucket.held)
            self.advance()

    def advance(self) -> None:
        """Start what can start, in order; after the last bucket, wait and finish."""
        for bucket in self.buckets[len(self.started) :]:
            if not bucket.is_complete:
                return
            if len(self.started) >= self.in_flight:  # else all gradients would lie here twice
                self.started[-self.in_flight][1].result()
            with no_grad():
                flat = self.prepare(bucket)
            self.started.append((bucket, self.lane.start(self.reducing(bucket, flat), flat.device)))
        started, self.started = self.started, []
        self.armed = False
        for bucket in self.buckets:
            bucket.ready.clear()
        with no_grad():
            for bucket, made in [(b, future.result()) for b, future in started]:
                self.finish(bucket, made)

    def reducing(self, bucket: Bucket, flat: Any) -> Callable[[], Any]:
        def work() -> Any:
            with no_grad():
                return self.reduce(bucket, flat)

        return work


def pieces(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> Iterator[Tensor]:
    """A vector cut into tensors of these shapes."""
    at = 0
    for shape in shapes:
        n = 1
        for size in shape:
            n *= size
        yield flat[at : at + n].reshape(shape)
        at += n
