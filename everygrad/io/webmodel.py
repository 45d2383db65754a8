"""A recorded function as data for JavaScript: buffers, kernels, commands, weights.

The recording is the WebGPU backend's own (`compile`), made with the limits that every browser
grants. A buffer that commands read but never write holds a constant, and becomes a weight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from everygrad.compiler.facts import ValueCheck
from everygrad.compiler.ir import Graph, Value, in_order, reachable
from everygrad.core.scopes import Scope
from everygrad.errors import CompileError, OutOfMemoryError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU
    from everygrad.backends.webgpu.driver.gpu import Gpu
    from everygrad.backends.webgpu.graph.replay import Replay

STORAGE_BUFFERS = 8  # WebGPU's default limits: what a page gets without asking
BINDING = 128 << 20
GROUPS = 65535
SHARED = 16 << 10
INVOCATIONS = 256
IN_BROWSER = frozenset(
    ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32")
)
_EXTENSION = re.compile(r"^\s*(?:enable|requires)\s+([^;]*);", re.MULTILINE)
_THREADS = re.compile(r"@workgroup_size\(([\d\s,]+)\)")


class browser_limits(Scope):  # noqa: N801  # read as a phrase
    """Kernels are made for a browser meanwhile. The caller holds the lock: nobody else records."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def enter(self) -> None:
        granted = self.gpu.limits
        self.gpu.features = set()  # what a page has not asked for
        self.gpu.limits = replace(
            granted,
            storage_buffers=min(STORAGE_BUFFERS, granted.storage_buffers),
            groups=min(GROUPS, granted.groups),
            shared_bytes=min(SHARED, granted.shared_bytes),
        )

    def leaving(self) -> tuple[Callable[[], Any], ...]:
        gpu = self.gpu
        return (
            partial(setattr, gpu, "limits", gpu.limits),
            partial(setattr, gpu, "features", gpu.features),
        )


def recorded(dev: WebGPU, graph: Graph) -> tuple[Exported | None, list[str]]:
    """The graph's commands, and what in them a browser cannot do."""
    gpu = dev.gpu
    with gpu.lock, browser_limits(gpu):
        gpu.wait()  # raises an index that was out of range before
        try:
            replay = dev.compile(graph)
        except OutOfMemoryError as error:
            return None, list(_large(graph)) or [str(error)]
        finally:
            # recording ran the checks on inputs that are not there
            gpu.submit()
            gpu.write(gpu.fault_storage(), b"\0" * 16)
    made = Exported(dev, graph, replay)
    return made, made.obstacles()


def _large(graph: Graph) -> Iterator[str]:
    """Values that have a buffer of their own, too large to be bound."""
    for v in in_order({*graph.inputs, *reachable(graph.outputs)}):
        alone = v.kind not in ("full", "elementwise", "movement") or v in graph.outputs
        if alone and v.nbytes > BINDING:
            yield f"{v.type} at {v.where or 'a constant'} takes {_too_much(v.nbytes)}"


def _too_much(size: int) -> str:
    return f"{size / (1 << 20):.0f} MB, and a browser binds {BINDING >> 20} MB at once; split it"


class Exported:
    """One function. Buffers and kernels are numbered in the order they appear."""

    def __init__(self, dev: WebGPU, graph: Graph, replay: Replay) -> None:
        self.name = ""
        self.dev = dev
        self.graph = graph
        self.replay = replay
        self.buffers: dict[int, int] = {}  # by the number of a block
        self.sizes: list[int] = []
        self.kernels: dict[str, int] = {}  # by source
        self.about: list[dict[str, Any]] = []  # the kernels
        self.commands: list[dict[str, Any]] = []
        self.inputs: list[dict[str, Any]] = []
        self.weights: dict[str, Any] = {}
        self.places: list[dict[str, Any]] = []  # of the weights
        self.written: set[int] = set()
        for command in replay.log:
            self.command(command)
        self.outputs = [self.output(v) for v in graph.outputs]
        self.constants()

    # --- commands --------------------------------------------------------------------------------

    def buffer(self, block: Any) -> int:
        found = self.buffers.get(block.number)
        if found is None:
            found = self.buffers[block.number] = len(self.sizes)
            self.sizes.append(block.size)
        return found

    def command(self, logged: Any) -> None:
        kernel = logged.kernel
        numbers = [self.buffer(b) for b in logged.blocks]
        inputs = 1 if kernel is None else kernel.inputs
        self.written.update(b.number for b in logged.blocks[inputs:])
        if kernel is None:
            at, size = logged.bound
            self.commands.append({"copy": numbers, "at": at, "bytes": size})
            return
        number = self.kernels.get(kernel.source)
        if number is None:
            number = self.kernels[kernel.source] = len(self.about)
            facts = {"inputs": kernel.inputs, "outputs": kernel.outputs}
            self.about.append({"name": kernel.name, **facts})
        words = np.frombuffer(kernel.uniform, np.uint32).tolist()
        self.commands.append(
            {"kernel": number, "buffers": numbers, "uniform": words, "groups": list(kernel.grid)}
        )

    # --- arrays ----------------------------------------------------------------------------------

    def output(self, v: Value) -> dict[str, Any]:
        array = self.replay.results[v]
        buffer = None if array.storage is None else self.buffer(array.storage.block)
        place = {"buffer": buffer, "offset": array.offset, "strides": list(array.strides)}
        return {"shape": list(v.shape), "dtype": str(v.dtype), **place}

    def input(self, name: str, v: Value) -> None:
        """Value `v` of the graph is handed over at each run."""
        storage = self.replay.made[v].storage
        buffer = None if storage is None else self.buffer(storage.block)
        about = {"shape": list(v.shape), "dtype": str(v.dtype), "buffer": buffer}
        self.inputs.append({"name": name, **about})

    def weight(self, name: str, v: Value, array: Any) -> None:
        """Value `v` of the graph is always this array; left out if nothing reads it."""
        storage = self.replay.made[v].storage
        if storage is not None and storage.block.number in self.buffers:
            self.place(name or f"captured{len(self.weights)}", storage.block, array)

    def place(self, name: str, block: Any, array: Any) -> None:
        free, n = name, 2
        while free in self.weights:
            free, n = f"{name}.{n}", n + 1
        self.weights[free] = np.ascontiguousarray(array).reshape(array.shape)
        self.places.append({"name": free, "buffer": self.buffer(block)})

    def constants(self) -> None:
        """What recording uploaded: read back from the GPU."""
        known = {a.storage.block.number: a for a in self.dev.made.values() if a.storage is not None}
        made = [
            (v.kind, a.storage.block.number, a)
            for v, a in self.replay.made.items()
            if a.storage is not None
        ]
        known.update({number: a for _, number, a in made})
        given = {number for kind, number, _ in made if kind == "input"}
        uploaded = {number for kind, number, _ in made if kind in ("full", "constant")}
        faults = self.faults()
        if uploaded & self.written:
            raise CompileError("export_web: a kernel writes over a constant; please report it")
        for number in list(self.buffers):
            if number in self.written or number in given or number == faults:
                continue
            if number not in known:
                raise CompileError("export_web: a constant was lost; please report it")
            array = known[number]
            self.place(f"constant{len(self.weights)}", array.storage.block, self.stored(array))

    def stored(self, array: Any) -> Any:
        """All elements of an array's storage, in the order they lie there."""
        count = array.storage.size // array.dtype.itemsize
        return self.dev.to_numpy(type(array)(array.device, (count,), array.dtype, array.storage))

    # --- index checks ----------------------------------------------------------------------------

    def faults(self) -> int:
        return int(self.dev.gpu.fault_storage().block.number)

    def checks(self) -> dict[str, Any] | None:
        """Where kernels report a bad value, and what to say then."""
        at = self.buffers.get(self.faults())
        if at is None:
            return None
        messages = {}
        for v in self.graph.values:
            if v.facts.value_check is ValueCheck.RANGE:
                what, size = v.params["what"], v.params["size"]
                number = self.dev.gpu.check_number(what, size)
                messages[str(number)] = {"what": what, "size": size}
            elif v.facts.value_check is ValueCheck.TRUE:
                number = self.dev.gpu.check_number(v.params["what"], 1, v.params["error"])
                messages[str(number)] = {"what": v.params["what"]}
        return {"buffer": at, "messages": messages}

    # --- obstacles -------------------------------------------------------------------------------

    def obstacles(self) -> list[str]:
        """Kernels and buffers beyond what every browser grants."""
        return [*self.kernel_obstacles(), *self.buffer_obstacles()]

    def kernel_obstacles(self) -> Iterator[str]:
        for source, about in zip(self.kernels, self.about, strict=True):
            count = about["inputs"] + about["outputs"]
            name = about["name"]
            if count > STORAGE_BUFFERS:
                yield f"{name} binds {count} buffers, a browser {STORAGE_BUFFERS}"
            for extension in _EXTENSION.findall(source):
                yield f"{name} needs {extension.strip()}, which not every browser has"
            for sizes in _THREADS.findall(source):
                threads = int(np.prod([int(n) for n in sizes.split(",") if n.strip()]))
                if threads > INVOCATIONS:
                    yield f"{name} has workgroups of {threads}, a browser of {INVOCATIONS}"
        for c in self.commands:
            if max(c.get("groups", [1])) > GROUPS:
                name = self.about[c["kernel"]]["name"]
                yield f"{name} starts {max(c['groups'])} workgroups a side, a browser {GROUPS}"

    def buffer_obstacles(self) -> Iterator[str]:
        """Each buffer that is too large, with who first uses it."""
        first: dict[int, str] = {}
        for c in self.commands:
            name = self.about[c["kernel"]]["name"] if "kernel" in c else "copy"
            for b in c.get("buffers", c.get("copy", [])):
                first.setdefault(b, name)
        for b, size in enumerate(self.sizes):
            if size > BINDING:
                yield f"a buffer of {first.get(b, 'the results')} takes {_too_much(size)}"

    # --- memory ----------------------------------------------------------------------------------

    def share(self) -> None:
        """Buffers of intermediate results serve again once nothing reads them any more."""
        checks = self.checks()
        ends = [*self.inputs, *self.outputs, *self.places, *([checks] if checks else [])]
        pinned = dict.fromkeys(e["buffer"] for e in ends if e["buffer"] is not None)
        sizes = [self.sizes[b] for b in pinned]
        places = {b: i for i, b in enumerate(pinned)}
        lists: list[list[int]] = [c.get("buffers") or c["copy"] for c in self.commands]
        last = {b: i for i, used in enumerate(lists) for b in used if b not in pinned}
        free: list[int] = []
        for i, used in enumerate(lists):
            for b in used:
                if b not in places:
                    places[b] = _take(free, sizes, self.sizes[b])
            free += {places[b] for b in used if last.get(b) == i}
        for used in lists:
            used[:] = [places[b] for b in used]
        for e in ends:
            e["buffer"] = places.get(e["buffer"])
        self.buffers = {number: places[b] for number, b in self.buffers.items() if b in places}
        self.sizes = sizes

    # --- text ------------------------------------------------------------------------------------

    def kernels_text(self) -> str:
        """All kernels in one file, each under a line with its number."""
        texts = zip(self.kernels, self.about, strict=True)
        return "".join(
            f"//// {i} {about['name']}\n{source.rstrip()}\n\n"
            for i, (source, about) in enumerate(texts)
        )

    def json(self) -> str:
        """The model; a line for each kernel and command."""
        self.share()
        parts: dict[str, Any] = {
            "format": "everygrad-web",
            "version": 1,
            "name": self.name,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "weights": self.places,
            "checks": self.checks(),
            "buffers": self.sizes,
            "kernels": self.about,
            "commands": self.commands,
        }
        return (
            "{\n" + ",\n".join(f"{json.dumps(k)}: {_rows(v)}" for k, v in parts.items()) + "\n}\n"
        )


def _take(free: list[int], sizes: list[int], size: int) -> int:
    """The free buffer that fits best, made larger if none is large enough, else a new one."""
    if not free:
        sizes.append(size)
        return len(sizes) - 1
    fitting = [b for b in free if sizes[b] >= size]
    found = min(fitting, key=sizes.__getitem__) if fitting else max(free, key=sizes.__getitem__)
    sizes[found] = max(sizes[found], size)
    free.remove(found)
    return found


def _rows(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)
