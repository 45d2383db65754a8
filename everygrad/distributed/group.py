"""Ranks that communicate with each other, and the collectives as algorithms on arrays.

Everything is made of one primitive of the carrier, `swap`: each rank of a group gives every other
one an array and gets one from it. An all_reduce is two of them: each rank sums one part of the
array, in the order of the ranks, and gives its part to all. That moves as few bytes as a ring, and
the order of summation depends on nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad.backends.cpu.runtime.pool import empty
from everygrad.distributed.background import STAGES, Rest
from everygrad.distributed.calls import Call, around_first_difference, digest
from everygrad.distributed.carriers.nccl import NcclGroup
from everygrad.distributed.sums import combined
from everygrad.errors import CollectiveMismatchError, DeviceError, PeerLost

if TYPE_CHECKING:
    from everygrad.distributed.world import World

SMALL = 1 << 13  # bytes up to which one exchange with everybody is faster than two of parts
MESSAGES = ("send", "recv")  # which two ranks agree on, when they meet
_HEADER = 32  # bytes: the number of the collective in its group, the length of its text, its digest


class Agreement(NamedTuple):
    """What the ranks of a group must all have: the collectives of a compiled step among them."""

    text: str
    calls: int


def _joined(parts: Sequence[Any], axis: int) -> Any:
    """Arrays of one shape behind each other, in memory of the pool."""
    shape = list(parts[0].shape)
    shape[axis] *= len(parts)
    return np.concatenate(parts, axis=axis, out=empty(tuple(shape), parts[0].dtype))


class Group:
    """Some ranks of a world, in an order. `name` is the same on all of them."""

    def __init__(self, world: World, name: str, ranks: tuple[int, ...]) -> None:
        self.world = world
        self.name = name
        self.ranks = ranks
        self.index = ranks.index(world.rank)
        self.size = len(ranks)
        self.count = 0  # collectives so far
        self.is_channel = False  # whether what is said here may overlap what is said elsewhere
        self.rounds = [0] * STAGES  # swaps so far, of each communication thread
        self.nccl: NcclGroup | None = None  # made with the first collective on a GPU
        self.sent: Counter[int] = Counter()  # messages so far, by the place they went to
        self.received: Counter[int] = Counter()

    def on_gpus(self, what: str) -> NcclGroup:
        """The GPUs of these ranks."""
        if not self.world.uses_nccl:
            raise DeviceError(f'{what}: a tensor on a GPU; GPUs talk to each other by init("nccl")')
        if self.nccl is None:
            self.nccl = NcclGroup(self)
        return self.nccl

    # --- agreement -------------------------------------------------------------------------------

    def agree(self, text: str, entry: dict[str, Any]) -> None:
        """Raise on all ranks unless all of them are about to do the same."""
        self.count += 1
        if self.size == 1:
            return
        encoded = text.encode()
        head = self.count.to_bytes(8, "little") + len(encoded).to_bytes(8, "little") + digest(text)
        said = [h.tobytes() for h in self.told(head, [_HEADER] * self.size, entry)]
        if all(s == head for s in said):
            return
        lengths = [int.from_bytes(s[8:16], "little") for s in said]
        texts = self.told(encoded, lengths, entry)
        lists = {
            rank: t.tobytes().decode(errors="replace").split("\n")
            for rank, t in zip(self.ranks, texts, strict=True)
        }
        numbers = [int.from_bytes(s[:8], "little") for s in said]
        counted = "" if len(set(numbers)) == 1 else f" (calls so far: {numbers})"
        path = self.world.ring.write("the ranks call different collectives")
        raise CollectiveMismatchError(
            f"the ranks of {self.name} call different collectives{counted}; the latest calls of "
            f"rank {self.world.rank} are in {path}\n{around_first_difference(lists)}"
        )

    def told(self, own: bytes, lengths: Sequence[int], entry: dict[str, Any]) -> list[Any]:
        """What each rank says, in bytes."""
        outs = [np.empty(n, np.uint8) for n in lengths]
        self.swap([np.frombuffer(own, np.uint8)] * self.size, outs, entry, header=True)
        return outs

    def trust(self, listed: Agreement) -> None:
        """Agree on the collectives of a compiled step as a whole: none of them asks again."""
        if self.size > 1:
            entry = self.world.ring.begin(f"agreement on {listed.calls} calls over {self.name}")
            self.guarded(entry, lambda: self.agree(listed.text, entry))

    def compare(self, text: str) -> None:
        """Raise on all ranks unless this is the text of each of them."""
        if self.size > 1:
            background = self.world.background
            entry = self.world.ring.begin(text)
            work = partial(self.guarded, entry, lambda: self.agree(text, entry))
            background.after_all(work) if background.busy else work()

    # --- collectives on arrays -------------------------------------------------------------------

    def run(self, call: Call, array: Any, trusted: bool = False, **params: Any) -> Any:
        """One collective: noted in the ring, agreed on, carried out. What was started before it is
        carried out first; a channel waits for nobody, whom others there may wait for."""
        background = self.world.background
        if background.busy and not self.is_channel:
            return background.after_all(lambda: self.now(call, array, trusted, params))
        return self.now(call, array, trusted, params)

    def run_on_gpus(self, call: Call, work: Callable[[], Any], trusted: bool) -> Any:
        """The same of arrays of GPUs: `work` launches it."""
        entry = self.world.ring.begin(str(call))

        def agreed() -> Any:
            if not trusted and call.kind not in MESSAGES:
                self.agree(str(call), entry)
            return work()

        return self.guarded(entry, agreed)

    def now(
        self,
        call: Call,
        array: Any,
        trusted: bool,
        params: dict[str, Any],
        stages: bool = False,
        owned: bool = False,
    ) -> Any:
        """`stages`: of a collective that has several, the first; what is returned is the rest.
        `owned`: the result may take the memory of the array, which nobody else knows."""
        entry = self.world.ring.begin(str(call))
        if stages and call.kind == "all_reduce" and self.has_halves(array):
            if not trusted:
                self.guarded(entry, lambda: self.agree(str(call), entry), ends=False)
            owned = owned and array.flags.c_contiguous
            return Rest(partial(self.first_half, array, entry, params, owned))

        def work() -> Any:
            if not trusted and call.kind not in MESSAGES:
                self.agree(str(call), entry)
            return getattr(self, call.kind)(array, entry, **params)

        return self.guarded(entry, work)

    def first_half(
        self, x: Any, entry: dict[str, Any], params: dict[str, Any], owned: bool
    ) -> Rest:
        """Of an all_reduce, in a thread of its own; what is left is the second half."""
        work = partial(self.sum_part, x, entry, channel=1, **params)
        part = self.guarded(entry, work, ends=False)
        second = partial(self.share_parts, part, x, entry, channel=2, owned=owned)
        return Rest(partial(self.guarded, entry, second))

    def guarded(self, entry: dict[str, Any], work: Any, ends: bool = True) -> Any:
        """What `work` gives; what it raises is noted, and the ring written. `ends`: after it the
        collective is done."""
        try:
            made = work()
        except (PeerLost, CollectiveMismatchError) as error:
            self.world.ring.end(entry, type(error).__name__)
            error.add_note(f"the latest collectives are in {self.world.ring.write(str(error))}")
            raise
        except BaseException as error:
            self.world.ring.end(entry, type(error).__name__)
            raise
        if ends:
            self.world.ring.end(entry)
        return made

    def swap(
        self,
        parts: Sequence[Any],
        outs: Sequence[Any],
        entry: dict[str, Any],
        header: bool = False,
        channel: int = 0,
    ) -> None:
        """Give part i to rank i of the group, and fill outs[i] with what it gives. `header`: small
        messages that show who is there; what follows them cannot wait for long. `channel`: the
        stage of a collective whose thread this is; its messages pass those of other stages."""
        self.rounds[channel] += 1
        own = self.index
        if outs[own] is not parts[own]:
            np.copyto(outs[own], parts[own])
        if self.size > 1:
            self.world.carrier.swap(self, parts, outs, entry, header, channel)

    def gathered(self, x: Any, entry: dict[str, Any]) -> list[Any]:
        """x of every rank."""
        outs = [x if i == self.index else empty(x.shape, x.dtype) for i in range(self.size)]
        self.swap([x] * self.size, outs, entry)
        return outs

    def exchanged(self, parts: Sequence[Any], entry: dict[str, Any], channel: int = 0) -> list[Any]:
        """The part that every rank has for this one; all parts are of one shape."""
        own = parts[self.index]
        outs = [own if i == self.index else empty(own.shape, own.dtype) for i in range(self.size)]
        self.swap(parts, outs, entry, channel=channel)
        return outs

    def combined(self, parts: Sequence[Any], how: str) -> Any:
        """Parts of all ranks as one; those of other ranks were received here, and are not needed
        any more."""
        scratch = parts[int(self.index == 0)] if self.size > 1 else None
        return combined(parts, how, scratch)

    def all_reduce(self, x: Any, entry: dict[str, Any], how: str) -> Any:
        if not self.has_halves(x):
            return combined(self.gathered(x, entry), how)
        return self.share_parts(self.sum_part(x, entry, how), x, entry)

    def has_halves(self, x: Any) -> bool:
        """Whether a sum of arrays like x is one of parts, which are then given to all."""
        return bool(x.nbytes > SMALL) and self.size > 1

    def parts_of(self, flat: Any) -> list[Any]:
        bounds = [flat.size * i // self.size for i in range(self.size + 1)]
        return [flat[a:b] for a, b in pairwise(bounds)]

    def sum_part(self, x: Any, entry: dict[str, Any], how: str, channel: int = 0) -> Any:
        """The first half of an all_reduce: this rank's part of the sum."""
        parts = self.parts_of(np.ascontiguousarray(x).reshape(-1))
        return self.combined(self.exchanged(parts, entry, channel), how)

    def share_parts(
        self, mine: Any, x: Any, entry: dict[str, Any], channel: int = 0, owned: bool = False
    ) -> Any:
        """The second half: all parts, in the shape of x, and in its memory if it is `owned`."""
        out = x.reshape(-1) if owned else empty((x.size,), x.dtype)
        self.swap([mine] * self.size, self.parts_of(out), entry, channel=channel)
        return out.reshape(x.shape)

    def all_gather(self, x: Any, entry: dict[str, Any], dim: int) -> Any:
        if any(n != 1 for n in x.shape[:dim]):
            return _joined(self.gathered(x, entry), dim)
        out = empty((*x.shape[:dim], x.shape[dim] * self.size, *x.shape[dim + 1 :]), x.dtype)
        self.swap([x] * self.size, np.split(out, self.size, axis=dim), entry)
        return out

    def reduce_scatter(self, x: Any, entry: dict[str, Any], dim: int) -> Any:
        return self.combined(self.exchanged(np.split(x, self.size, axis=dim), entry), "sum")

    def all_to_all(self, x: Any, entry: dict[str, Any], split_dim: int, concat_dim: int) -> Any:
        parts = np.split(x, self.size, axis=split_dim)
        return _joined(self.exchanged(parts, entry), concat_dim)

    def broadcast(self, x: Any, entry: dict[str, Any], source: int) -> Any:
        nothing = np.empty((0,), x.dtype)
        parts = [x if self.index == source else nothing] * self.size
        out = empty(x.shape, x.dtype)
        self.swap(parts, [out if i == source else nothing for i in range(self.size)], entry)
        return out

    def reduce(self, x: Any, entry: dict[str, Any], source: int) -> Any:
        """The sum on one rank, and zeros on the others."""
        nothing = np.empty((0,), x.dtype)
        parts = [x if i == source else nothing for i in range(self.size)]
        if self.index != source:
            self.swap(parts, [nothing] * self.size, entry)
            return np.zeros_like(x)
        outs = [x if i == source else empty(x.shape, x.dtype) for i in range(self.size)]
        self.swap(parts, outs, entry)
        return combined(outs, "sum")

    def barrier(self, x: Any, entry: dict[str, Any]) -> Any:
        """Nothing but an exchange: who has everyone's array knows that everyone is here."""
        self.gathered(x, entry)
        return x.copy()

    def statement(self, x: Any, entry: dict[str, Any], text: str) -> Any:
        """Nothing: the ranks have agreed on the text."""
        return x.copy()

    def send(self, x: Any, entry: dict[str, Any], to: int, text: str) -> Any:
        self.sent[to] += 1
        self.world.carrier.send(self, to, np.ascontiguousarray(x), text, self.sent[to], entry)
        return np.zeros((), x.dtype)

    def recv(self, x: Any, entry: dict[str, Any], source: int, text: str) -> Any:
        self.received[source] += 1
        number = self.received[source]
        out = empty(x.shape, x.dtype)
        said = self.world.carrier.receive(self, source, out, text, number, entry)
        if said != text:
            path = self.world.ring.write("a message is not what was expected")
            raise CollectiveMismatchError(
                f"rank {self.world.rank} receives {text} from rank {self.ranks[source]}, which "
                f"sends {said} (message {number} between them); the latest calls are in {path}"
            )
        return out
