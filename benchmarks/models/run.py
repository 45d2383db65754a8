"""`python -m benchmarks.models.run MODEL DEVICE PEER`: one peer's figures of one model, as JSON.

`--processor` counts seconds of the processor, of all threads, in place of the clock's: on the CPU,
where others work on the same machine.
The process imports what the peer needs and nothing else. `--profile FILE` also writes how long each
kernel of a step on CUDA takes, by PyTorch's profiler, which sees every library's kernels.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import Library, Model, all_models

# peer -> library, way
PEERS = {
    "everygrad": ("everygrad", "eager"),
    "everygrad.jit": ("everygrad", "jit"),
    "torch": ("torch", "eager"),
    "torch.channels_last": ("torch", "channels_last"),
    "torch.compile": ("torch", "compile"),
    "torch.everygrad": ("torch", "everygrad"),  # torch.compile(backend="everygrad")
}
CHECKED = 3  # steps whose losses are compared
LEAST_S, MOST_ROUNDS = 2.0, 30  # of the timed rounds


def library(name: str, device: str) -> Library:
    """The modules of a library; seeds and precisions are its defaults."""
    lib = importlib.import_module(name)
    nn = importlib.import_module(f"{name}.nn")
    return Library(name, lib, nn, importlib.import_module(f"{name}.nn.functional"), device)


def weights(model: Any) -> dict[str, Any]:
    """The same values for the same names, whatever the library."""
    found = {}
    for name, p in model.named_parameters():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        shape = tuple(p.shape)
        if len(shape) < 2:
            value = np.zeros(shape) if "bias" in name else np.ones(shape)
        else:
            scale = 0.02 if "wte" in name or "wpe" in name else math.prod(shape[1:]) ** -0.5
            value = scale * rng.standard_normal(shape, dtype=np.float32)
        found[name] = value.astype(np.float32)
    return found


def autocast(L: Library, model: Model) -> Callable[[], AbstractContextManager[Any]]:
    if model.precision != "bf16":
        return nullcontext
    if L.name == "torch":
        return lambda: L.lib.autocast(L.device, dtype=L.lib.bfloat16)
    return lambda: L.lib.autocast(dtype="bfloat16")


def optimiser(L: Library, model: Model, network: Any) -> Any:
    optim = importlib.import_module(f"{L.name}.optim")
    # PyTorch's foreach/fused forms are chosen as its users choose them: fused where there is one
    fused = {"fused": True} if L.name == "torch" else {}
    if model.optimiser == "sgd":
        return optim.SGD(network.parameters(), lr=model.lr, momentum=0.9, **fused)
    return optim.AdamW(network.parameters(), lr=model.lr, **fused)


def build(L: Library, model: Model, way: str) -> Callable[[], Any]:
    """A function that does one step and returns its loss."""
    network = model.network(L)
    values = weights(network)
    with L.lib.no_grad():
        for name, p in network.named_parameters():  # tied ones once
            p[...] = L.lib.asarray(values[name])
    network.to(L.device)
    arrays = model.batch(np.random.default_rng(2026))
    batch = {name: L.lib.asarray(a).to(L.device) for name, a in arrays.items()}
    for name in model.differentiates_inputs:
        batch[name] = batch[name].detach().requires_grad_(True)
    if way == "channels_last":
        network.to(memory_format=L.lib.channels_last)
        batch["x"] = batch["x"].contiguous(memory_format=L.lib.channels_last)
    opt = optimiser(L, model, network)
    cast = autocast(L, model)

    def forward(**given: Any) -> Any:
        with cast():
            return model.loss(L, network, given)

    compute = forward
    if way in ("compile", "everygrad"):
        compute = L.lib.compile(forward, backend="inductor" if way == "compile" else way)

    def step(**given: Any) -> Any:
        loss = compute(**given)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    whole = L.lib.jit(step) if way == "jit" else step
    return lambda: whole(**batch)


# --- what a device says --------------------------------------------------------------------------


class Meter:
    """Waits for a device, and tells the most memory that was in use at once."""

    def __init__(self, L: Library) -> None:
        self.L = L
        self.start = 0
        if L.device == "cpu":
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self.start = self._kilobytes("VmRSS")

    @staticmethod
    def _kilobytes(key: str) -> int:
        status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith(key))

    def wait(self) -> None:
        if self.L.device == "cpu":
            return
        if self.L.name == "torch":
            self.L.lib.cuda.synchronize()
        else:
            self._backend().synchronize()

    def _backend(self) -> Any:
        return importlib.import_module("everygrad.backends.base").get(self.L.device)

    def peak(self) -> int:
        if self.L.device == "cpu":
            return 1024 * (self._kilobytes("VmHWM") - self.start)
        if self.L.name == "torch":
            return int(self.L.lib.cuda.max_memory_allocated())
        gpu = self._backend().gpu
        if self.L.device == "webgpu":
            return int(gpu.pool.taken_bytes)  # what it took and keeps, in use or not
        return int(gpu.memory.statistics()["peak"])


def measure(
    model: Model, device: str, peer: str, clock: Callable[[], float] = time.perf_counter
) -> tuple[dict[str, Any], Callable[[], Any], Meter]:
    """What a peer's steps took and gave, the step itself, and the meter it was measured by."""
    name, way = PEERS[peer]
    L = library(name, device)
    if name == "everygrad" and device == "cpu":
        # LLVM is loaded when first needed, PyTorch's kernels with it: neither is a step's memory
        importlib.import_module("everygrad.backends.base").get("cpu").warm_up()
    if model.precision == "tf32":
        L.lib.set_float32_matmul_precision("high")
    step = build(L, model, way)
    gc.collect()
    meter = Meter(L)
    meter.wait()
    seconds, losses = [], []
    for _ in range(CHECKED):
        start = clock()
        loss = step()
        meter.wait()
        seconds.append(clock() - start)
        losses.append(float(loss))
    rounds = _rounds(step, meter, clock)
    found = {"first_s": seconds[0], "second_s": seconds[1], "losses": losses, "times": rounds,
             "peak": meter.peak(), "versions": {name: str(L.lib.__version__)}}  # fmt: skip
    return found, step, meter


def _rounds(step: Callable[[], Any], meter: Meter, clock: Callable[[], float]) -> list[float]:
    """Seconds a step, of rounds that last a tenth of a second or a step."""
    start = clock()
    step()
    meter.wait()
    one = clock() - start
    count = max(1, math.ceil(0.1 / one))
    for _ in range(count):
        step()
    meter.wait()
    times: list[float] = []
    begin = clock()
    while len(times) < 3 or (clock() - begin < LEAST_S and len(times) < MOST_ROUNDS):
        start = clock()
        for _ in range(count):
            step()
        meter.wait()
        times.append((clock() - start) / count)
    return times


def profile(step: Callable[[], Any], meter: Meter, path: str) -> None:
    """Every kernel of one step, the longest first."""
    torch = importlib.import_module("torch")
    activities = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activities.CUDA]) as found:
        step()
        meter.wait()
    totals: dict[str, list[float]] = {}
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            row = totals.setdefault(event.name, [0.0, 0.0])
            row[0] += event.device_time
            row[1] += 1
    lines = [f"{sum(r[0] for r in totals.values()):12.1f} us in all"]
    for name, (us, count) in sorted(totals.items(), key=lambda item: -item[1][0]):
        lines.append(f"{us:12.1f} us {int(count):6d} x  {name[:160]}")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models.run", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("device", choices=("cpu", "cuda", "webgpu"))
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--profile", metavar="FILE")
    parser.add_argument("--processor", action="store_true", help="seconds of the processor")
    args = parser.parse_args()
    clock = time.process_time if args.processor else time.perf_counter
    found, step, meter = measure(all_models()[args.model], args.device, args.peer, clock)
    print(json.dumps(found), flush=True)
    if args.profile:
        profile(step, meter, args.profile)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
