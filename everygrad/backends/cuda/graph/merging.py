"""Small kernels that do not depend on each other as one launch, by a table of their arguments.

What each costs is its launch: an optimiser's step is a few kernels for every parameter. A merged
kernel divides its blocks among its entries. Entries of one text are a range of the table and share
its code, whatever their sizes; those of other texts are branches, which whole blocks take.

Steps run in the order they were recorded in, but a kernel that is merged takes along all later ones
whose operands are there already. So their number is that of the kinds of work, one after the other,
not that of the parameters.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from everygrad.backends.cuda.driver.gpu import Kernel
from everygrad.backends.cuda.graph.recording import Recorder, Relocation, Step
from everygrad.backends.cuda.source.writer import KernelParts, KernelText, WrittenKernel
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of

# bytes of what a kernel writes and other kernels read, up to which it is worth a table entry
SMALL = edge(__name__, "SMALL", 1 << 20, "bytes")
_TEMPORARIES = edge(__name__, "_TEMPORARIES", 1 << 24, "bytes")  # the same, of a whole launch
_MOST_TEXTS = edge(__name__, "_MOST_TEXTS", 24, "count")  # branches of one kernel
_MOST_LINES = 3000  # of one kernel: what the compiler does quickly
_ARGUMENT_BYTES = 4096 - 16  # of a launch, on every GPU, with a gap
_LOOKED_AT = 1024  # kernels that might be merged with one, at most
_BLOCKS = (256, 512, 1024)  # threads of a merged block: more leave each thread fewer registers
# blocks of a launch that may have fewer threads than its others: about as many as a GPU runs at a
# time, so that their idle warps keep nobody waiting
_FEW_BLOCKS = 128
_MOST_BLOCKS = 1 << 20  # of an entry
_SHARED = re.compile(r"__shared__ alignas\(16\) (\w+) (\w+)\[(\d+)\];")
_SHARED_BYTES = 48 << 10
_WIDTH = {"char": 1, "u32": 4}
_INDICES = {"blockIdx.x": "at_x", "blockIdx.y": "at_y", "blockIdx.z": "at_z", "gridDim.x": "all_x"}
_UNKNOWN = re.compile(
    r"atomic|\bfault\(|__threadfence|blockDim|gridDim\.[yz]|threadIdx\.[yz]|__shared__"
)


class Access(NamedTuple):
    """The slots that a step reads, and those that it writes."""

    reads: set[int]
    writes: set[int]


class Entry(NamedTuple):
    """A step that can be part of a merged kernel."""

    step: Step
    written: WrittenKernel
    parts: KernelParts

    @property
    def text(self) -> tuple[int, KernelParts]:
        """What entries must have in common to share their code."""
        return self.written.block, self.parts

    @property
    def threads(self) -> int:
        return min(n for n in _BLOCKS if n >= self.written.block)

    @property
    def blocks(self) -> int:
        return size_of(self.written.grid)


class Launch(NamedTuple):
    """A step of the new order: the numbers of those it was made of."""

    step: Step
    numbers: list[int]


def access_of(step: Step) -> Access:
    """What a step reads and writes; of a library's call, everything may be written."""
    kernel = step.what
    parts = kernel.written.parts if isinstance(kernel, Kernel) else None
    if parts is None:
        return Access(set(), step.slots)
    reads = {r.slot for r in step.relocations if parts.pointers[r.at].startswith("const ")}
    writes = {r.slot for r in step.relocations if not parts.pointers[r.at].startswith("const ")}
    return Access(reads, writes)


def entry_of(step: Step) -> Entry | None:
    """A step as an entry; None where its kernel must be launched by itself."""
    kernel = step.what
    if not isinstance(kernel, Kernel) or kernel.written.parts is None:
        return None
    written, parts = kernel.written, kernel.written.parts
    if written.wide or written.block > _BLOCKS[-1] or written.block % 32:
        return None
    if size_of(written.grid) > _MOST_BLOCKS or len(parts.lines) > _MOST_LINES // 2:
        return None
    if any(_UNKNOWN.search(_SHARED.sub("", line)) for line in parts.lines):
        return None
    if 8 * len(parts.pointers) + 4 * len(parts.numbers) > _ARGUMENT_BYTES // 2:
        return None
    found = Entry(step, written, parts)
    return found if _shared_bytes(parts) <= _SHARED_BYTES else None


# --- the order -----------------------------------------------------------------------------------


def waits_of(accesses: Sequence[Access], over: Mapping[int, set[int]]) -> list[set[int]]:
    """By step: the earlier ones it waits for. What step k writes over (`over[k]`, slots) is read
    before, as it was recorded."""
    touched: dict[int, list[int]] = {}  # by slot: the steps since it was last written
    found: list[set[int]] = []
    for k, (reads, writes) in enumerate(accesses):
        before: set[int] = set()
        for slot in reads - writes:
            before.update(touched.get(slot, ())[:1])  # who wrote it comes first
        for slot in writes | over.get(k, set()):
            before.update(touched.get(slot, ()))
        found.append(before)
        for slot in writes:
            touched[slot] = [k]
        for slot in reads - writes:
            touched.setdefault(slot, [-1]).append(k)  # -1: it was there from the start
        before.discard(-1)
    return found


def merged(
    gpu: Recorder,
    steps: Sequence[Step],
    over: Mapping[int, set[int]],
    temporary_bytes: Callable[[Iterable[int]], int],
) -> list[Launch]:
    """The steps in an order in which those that can be merged are. `temporary_bytes` says how much
    memory slots take that no input and no result has."""
    accesses = [access_of(step) for step in steps]
    last = {slot: k for k, step in enumerate(steps) for slot in step.slots}
    # what is read later in any case cannot be written over
    over = {k: {s for s in slots if last.get(s, k) <= k} for k, slots in over.items()}
    waits = waits_of(accesses, over)
    behind: dict[int, list[int]] = {}
    for k, before in enumerate(waits):
        for n in before:
            behind.setdefault(n, []).append(k)
    left = [len(before) for before in waits]
    entries: dict[int, Entry] = {}
    costs: dict[int, int] = {}
    for k, step in enumerate(steps):
        entry = entry_of(step)
        if entry is not None:
            costs[k] = temporary_bytes(accesses[k].writes)
            if costs[k] <= SMALL:
                entries[k] = entry
    ready = {k for k in entries if not left[k]}
    done: set[int] = set()
    made: list[Launch] = []
    late = _late(entries, behind, accesses, temporary_bytes)
    ready -= late
    for k in (*(n for n in range(len(steps)) if n not in late), *sorted(late)):
        if k in late and not ready:
            ready = late - done
        if k in done:
            continue
        step = steps[k]
        some = [k]
        if k in entries:
            some = _chosen(k, sorted(ready)[:_LOOKED_AT], entries, accesses, over, costs)
        done.update(some)
        ready.difference_update(some)
        for n in some:
            for other in behind.get(n, ()):
                left[other] -= 1
                if not left[other] and other in entries and other not in late:
                    ready.add(other)
        if len(some) > 1:
            numbers, step = merge(gpu, {n: entries[n] for n in some})
            made.append(Launch(step, numbers))
        else:
            made.append(Launch(_compiled(gpu, step), some))
    return made


def _late(
    entries: Mapping[int, Entry],
    behind: Mapping[int, list[int]],
    accesses: Sequence[Access],
    temporary_bytes: Callable[[Iterable[int]], int],
) -> set[int]:
    """Entries that nothing waits for come last, so that they find each other: parameters that move
    by what took different steps to compute. Their operands stay in memory until then."""
    found: set[int] = set()
    slots: set[int] = set()
    for k in entries:
        reads = accesses[k].reads
        if k in behind or temporary_bytes(reads) > SMALL:
            continue
        if temporary_bytes(slots | reads) <= _TEMPORARIES:
            slots |= reads
            found.add(k)
    return found


def _chosen(
    first: int,
    ready: Sequence[int],
    entries: Mapping[int, Entry],
    accesses: Sequence[Access],
    over: Mapping[int, set[int]],
    costs: Mapping[int, int],
) -> list[int]:
    """The first step, and those that are merged with it. No block may write over what another one
    reads, so what a step writes over is touched by no other."""
    some: list[int] = []
    touched: set[int] = set()
    rewritten: set[int] = set()
    texts: set[tuple[int, KernelParts]] = set()
    nbytes = lines = cost = 0
    blocks = dict.fromkeys(_BLOCKS, 0)
    for k in (first, *(n for n in ready if n > first)):
        entry = entries[k]
        mine, own = accesses[k].reads | accesses[k].writes, over.get(k, set())
        new = entry.text not in texts
        size = _entry_bytes(entry)
        more = len(entry.parts.lines) if new else 0
        if some and (
            _idle_blocks(blocks, entry) > _FEW_BLOCKS
            or mine & rewritten
            or own & touched
            or nbytes + size > _ARGUMENT_BYTES
            or lines + more > _MOST_LINES
            or cost + costs[k] > _TEMPORARIES
            or (new and len(texts) >= _MOST_TEXTS)
        ):
            continue
        some.append(k)
        texts.add(entry.text)
        touched |= mine
        rewritten |= own
        nbytes, lines, cost = nbytes + size, lines + more, cost + costs[k]
        blocks[entry.threads] += entry.blocks
    return some


def _idle_blocks(blocks: Mapping[int, int], entry: Entry) -> int:
    """The blocks of a launch, by their threads, that would have idle warps with one entry more."""
    more = {**blocks, entry.threads: blocks[entry.threads] + entry.blocks}
    most = max(threads for threads, count in more.items() if count)
    return sum(count for threads, count in more.items() if threads < most)


def in_place_pairs(
    members: Sequence[tuple[Step, Sequence[tuple[int, int]]]],
) -> list[tuple[int, int]]:
    """Which slots a merged step may write over which: of what its members may, each with its pairs
    of slots, those that no other member touches."""
    uses = Counter(slot for step, _ in members for slot in step.slots)
    return [(source, out) for _, pairs in members for source, out in pairs if uses[source] == 1]


def _compiled(gpu: Recorder, step: Step) -> Step:
    """A step that runs by itself, whose kernel may have been postponed."""
    if isinstance(step.what, Kernel) and step.what.function is None:
        return step._replace(what=gpu.prepare(step.what.written))
    return step


# --- the kernel ----------------------------------------------------------------------------------


def _places(parts: KernelParts) -> list[str]:
    """The sizes of its own grid that an entry needs: of each axis but the last."""
    text = "\n".join(parts.lines)
    if "blockIdx.z" in text:
        return ["x", "y"]
    return ["x"] if "blockIdx.y" in text or "gridDim.x" in text else []


def _entry_bytes(entry: Entry) -> int:
    """The bytes of an entry in a table, at most."""
    numbers = 1 + len(entry.parts.numbers) + len(_places(entry.parts))
    return 8 * len(entry.parts.pointers) + 4 * numbers


def _shared_bytes(parts: KernelParts) -> int:
    found = [m for line in parts.lines for m in _SHARED.finditer(line)]
    if any(m[1] not in _WIDTH for m in found):
        return _SHARED_BYTES + 1
    return sum(-(-int(m[3]) * _WIDTH[m[1]] // 16) * 16 for m in found)


def _in_shared(lines: Sequence[str]) -> list[str]:
    """A body whose shared memory is part of the merged kernel's, which only one branch uses."""
    at = 0

    def declared(m: re.Match[str]) -> str:
        nonlocal at
        start, at = at, at + -(-int(m[3]) * _WIDTH[m[1]] // 16) * 16
        return f"{m[1]}* const {m[2]} = ({m[1]}*)(memory + {start});"

    return [_SHARED.sub(declared, line) for line in lines]


def merge(gpu: Recorder, given: Mapping[int, Entry]) -> tuple[list[int], Step]:
    """Entries as one step, and their numbers in the order of its table."""
    texts: dict[tuple[int, KernelParts], list[int]] = {}
    for n, entry in given.items():
        texts.setdefault(entry.text, []).append(n)
    order = [n for numbers in texts.values() for n in numbers]
    blocks = [given[n].blocks for n in order]
    table = _Table([sum(blocks[:i]) for i in range(len(order))])
    functions, branches, first = [], [], 0
    shared = max(_shared_bytes(given[n].parts) for n in order)
    threads = max(entry.threads for entry in given.values())
    for i, numbers in enumerate(texts.values()):
        some = [given[n] for n in numbers]
        functions.append(_function(some[0], i, threads))
        call = table.add(some, first)
        first += len(some)
        branches.append(f"if (k < {first}) part{i}_@({call});")
    step = 1 << len(order).bit_length() - 1
    lines = [
        "int k = 0;  // whose block this is",
        f"for (int step = {step}; step; step >>= 1)",
        f"  if (k + step < {len(order)} && table.number[k + step] <= (i32)blockIdx.x) k += step;",
        "const u32 block = blockIdx.x - (u32)table.number[k];",
        *([f"__shared__ alignas(16) char memory[{shared}];"] if shared else []),
        " else ".join(branches),
    ]
    body = "\n".join(f"  {line}" for line in lines)
    source = (
        f"struct Table_@ {{ u64 at[{len(table.pointers)}]; i32 number[{len(table.numbers)}]; }};"
        f"\n{''.join(functions)}"
        f'extern "C" __global__ void __launch_bounds__({threads})\n'
        f"@title(const Table_@ table) {{\n{body}\n}}\n"
    )
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    title = re.sub(r"_[0-9a-f]{12}$", "", next(iter(given.values())).written.text.name)
    name = f"multi_tensor_{title.removeprefix('fused_')}_{digest}"
    text = KernelText(name, source.replace("@title", name).replace("@", digest))
    written = WrittenKernel(
        *(text, len(table.pointers), tuple(table.numbers), False, (sum(blocks), 1, 1), threads)
    )
    addresses = tuple(address for address, _ in table.pointers)
    places = tuple(
        Relocation(i, r.slot, r.offset) for i, (_, r) in enumerate(table.pointers) if r is not None
    )
    return order, Step(gpu.prepare(written), addresses, places, ())


class _Table:
    """The arguments of a merged kernel: its pointers, then numbers. These begin with the first
    block of each entry."""

    def __init__(self, firsts: Sequence[int]) -> None:
        self.pointers: list[tuple[int, Relocation | None]] = []
        self.numbers = [*firsts]

    def add(self, some: Sequence[Entry], first: int) -> str:
        """Add the entries of one text, of which the first is this one of the table; returns the
        arguments of its function. What is the same for all of them is there once."""
        parts = some[0].parts
        places = _places(parts)
        given = [_pointers(entry.step) for entry in some]
        values = [(*e.written.numbers, *e.written.grid[: len(places)]) for e in some]
        calls = []
        for i, declared in enumerate(parts.pointers):
            column = [pointers[i] for pointers in given]
            where = self._column(self.pointers, column, first)
            kind = declared.replace("__restrict__ ", "").rsplit(" ", 1)[0]
            calls.append(f"({kind})table.at[{where}]")
        for i in range(len(parts.numbers) + len(places)):
            where = self._column(self.numbers, [v[i] for v in values], first)
            calls.append(f"table.number[{where}]")
        return ", ".join([*calls, "block", *(["memory"] if _shared_bytes(parts) else [])])

    def _column(self, into: list[Any], column: list[Any], first: int) -> str:
        """Put one argument of all entries into the table; returns where entry k finds its own."""
        at = len(into)
        if all(x == column[0] for x in column):
            into.append(column[0])
            return str(at)
        into += column
        return f"k + {at - first}" if at >= first else f"k - {first - at}"


def _pointers(step: Step) -> list[tuple[int, Relocation | None]]:
    """A step's addresses, and where they lie, if in a slot: equal ones compare equal."""
    found = {r.at: r._replace(at=0) for r in step.relocations}
    return [(address, found.get(i)) for i, address in enumerate(step.arguments)]


def _function(entry: Entry, number: int, threads: int) -> str:
    """A body as a function of its arguments and its block, in a kernel of so many threads."""
    parts, written = entry.parts, entry.written
    places = _places(parts)
    lines = ["const u32 at_x = block;"]
    if places:
        at = ["const u32 at_x = block % all_x;", "const u32 at_y = block / all_x;"]
        if len(places) == 2:
            at[1] = "const u32 at_y = block / all_x % all_y;"
            at.append("const u32 at_z = block / all_x / all_y;")
        lines = at
    if written.block < threads:  # whole warps, which no barrier waits for
        lines.insert(0, f"if (threadIdx.x >= {written.block}) return;")
    for line in _in_shared(parts.lines):
        for name, other in _INDICES.items():
            line = line.replace(name, other)
        lines.append(line)
    arguments = [*parts.pointers, *parts.numbers, *(f"u32 all_{axis}" for axis in places)]
    arguments += ["const u32 block", *(["char* memory"] if _shared_bytes(parts) else [])]
    body = "\n".join(f"  {line}" for line in lines)
    head = f"__device__ __forceinline__ void part{number}_@({', '.join(arguments)})"
    return f"{head} {{\n{body}\n}}\n"
