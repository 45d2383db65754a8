"""Ranks that communicate with each other, and the collectives as algorithms on arrays.

Everything is made of one primitive of the carrier, `swap`: each rank of a group gives every other
one an array and gets one from it. An all_reduce is two of them: each rank sums one part of the
array, in the order of the ranks, and gives its part to all. That moves as few bytes as a ring, and
the order of summation depends on nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad.backends.cpu.runtime.pool import empty
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


class Group:
    """Some ranks of a world, in an order. `name` is the same on all of them."""

    def __init__(self, world: World, name: str, ranks: tuple[int, ...]) -> None:
        self.world = world
        self.name = name
        self.ranks = ranks
        self.index = ranks.index(world.rank)
        self.size = len(ranks)
        self.count = 0  # collectives so far
        self.rounds = 0  # swaps so far
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

    # --- collectives on arrays -------------------------------------------------------------------

    def run(self, call: Call, array: Any, trusted: bool = False, **params: Any) -> Any:
        """One collective: noted in the ring, agreed on, carried out. What was started before it is
        carried out first."""
        background = self.world.background
        if background.busy:
            return background.submit(lambda: self.now(call, array, trusted, params)).result()
        return self.now(call, array, trusted, params)

    def run_on_gpus(self, call: Call, work: Callable[[], Any], trusted: bool) -> Any:
        """The same of arrays of GPUs: `work` launches it."""
        entry = self.world.ring.begin(str(call))

        def agreed() -> Any:
            if not trusted and call.kind not in MESSAGES:
                self.agree(str(call), entry)
            return work()

        return self.guarded(entry, agreed)

    def now(self, call: Call, array: Any, trusted: bool, params: dict[str, Any]) -> Any:
        entry = self.world.ring.begin(str(call))

        def work() -> Any:
            if not trusted and call.kind not in MESSAGES:
                self.agree(str(call), entry)
            return getattr(self, call.kind)(array, entry, **params)

        return self.guarded(entry, work)

    def guarded(self, entry: dict[str, Any], work: Any) -> Any:
        """What `work` gives; what it raises is noted, and the ring written."""
        try:
            made = work()
        except (PeerLost, CollectiveMismatchError) as error:
            self.world.ring.end(entry, type(error).__name__)
            error.add_note(f"the latest collectives are in {self.world.ring.write(str(error))}")
            raise
        except BaseException as error:
            self.world.ring.end(entry, type(error).__name__)
            raise
        self.world.ring.end(entry)
        return made

    def swap(
        self, parts: Sequence[Any], outs: Sequence[Any], entry: dict[str, Any], header: bool = False
    ) -> None:
        """Give part i to rank i of the group, and fill outs[i] with what it gives. `header`: small
        messages that show who is there; what follows them cannot wait for long."""
        self.rounds += 1
        own = self.index
        if outs[own] is not parts[own]:
            np.copyto(outs[own], parts[own])
        if self.size > 1:
            self.world.carrier.swap(self, parts, outs, entry, header)

    def gathered(self, x: Any, entry: dict[str, Any]) -> list[Any]:
        """x of every rank."""
        outs = [x if i == self.index else empty(x.shape, x.dtype) for i in range(self.size)]
        self.swap([x] * self.size, outs, entry)
        return outs

    def exchanged(self, parts: Sequence[Any], entry: dict[str, Any]) -> list[Any]:
        """The part that every rank has for this one; all parts are of one shape."""
        own = parts[self.index]
        outs = [own if i == self.index else empty(own.shape, own.dtype) for i in range(self.size)]
        self.swap(parts, outs, entry)
        return outs

    def all_reduce(self, x: Any, entry: dict[str, Any], how: str) -> Any:
        if x.nbytes <= SMALL or self.size == 1:
            return combined(self.gathered(x, entry), how)
        flat = np.ascontiguousarray(x).reshape(-1)
        bounds = [flat.size * i // self.size for i in range(self.size + 1)]
        parts = [flat[a:b] for a, b in pairwise(bounds)]
        mine = combined(self.exchanged(parts, entry), how)
        out = empty(flat.shape, x.dtype)
        self.swap([mine] * self.size, [out[a:b] for a, b in pairwise(bounds)], entry)
        return out.reshape(x.shape)

    def all_gather(self, x: Any, entry: dict[str, Any], dim: int) -> Any:
        if any(n != 1 for n in x.shape[:dim]):
            return np.concatenate(self.gathered(x, entry), axis=dim)
        out = empty((*x.shape[:dim], x.shape[dim] * self.size, *x.shape[dim + 1 :]), x.dtype)
        self.swap([x] * self.size, np.split(out, self.size, axis=dim), entry)
        return out

    def reduce_scatter(self, x: Any, entry: dict[str, Any], dim: int) -> Any:
        return combined(self.exchanged(np.split(x, self.size, axis=dim), entry), "sum")

    def all_to_all(self, x: Any, entry: dict[str, Any], split_dim: int, concat_dim: int) -> Any:
        parts = np.split(x, self.size, axis=split_dim)
        return np.concatenate(self.exchanged(parts, entry), axis=concat_dim)

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

    def send(self, x: Any, entry: dict[str, Any], to: int, text: str) -> Any:
        self.sent[to] += 1
        self.world.carrier.send(self, to, np.ascontiguousarray(x), text, self.sent[to], entry)
        return np.zeros((), x.dtype)

    def recv(self, x: Any, entry: dict[str, Any], source: int, text: str) -> Any:
        self.received[source] += 1
        number = self.received[source]
        out = np.empty(x.shape, x.dtype)
        said = self.world.carrier.receive(self, source, out, text, number, entry)
        if said != text:
            path = self.world.ring.write("a message is not what was expected")
            raise CollectiveMismatchError(
                f"rank {self.world.rank} receives {text} from rank {self.ranks[source]}, which "
                f"sends {said} (message {number} between them); the latest calls are in {path}"
            )
        return out
