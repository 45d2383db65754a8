"""Whole networks with random weights, layer by layer against PyTorch, forward and backward.

`check` runs a network eagerly and holds every layer against PyTorch's in float64 *on the layer's
own inputs*: its result, what it gives back to each input and parameter, its running statistics. So
a fault is seen where it is made, whatever becomes of it further on. In float64 the whole network
is compared as well. In every dtype the compiled step is compared with float64, which is on the side
of each relu's kink on which that step was, and may be as far away as eager mode is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg
from devtools.sweep.networks.layers import LAYERS, Done, Net, Ours, Theirs
from devtools.sweep.networks.models import NETWORKS, Network

# how far an element of one layer may be off, relative to itself and to the root mean square of all
LAYER = {"float64": 1e-12, "float32": 1e-4}
# the same of whole networks, relative to the largest: rounding grows from layer to layer
WHOLE = {"float64": 1e-8}
# how far what was compiled may be from float64, as a length beside the array's: so many times as
# far as eager mode is, whose layers were looked at one by one, and this
TIMES = 4.0
COMPILED = {"float64": 1e-9, "float32": 1e-3}
LEAST = 1e-3  # beside the median of a network's arrays: what is smaller is 0 but for rounding


def _size(x: Any) -> float:
    """The root mean square of what is finite."""
    finite = x[np.isfinite(x)].astype(np.float64)
    return float(np.sqrt(np.mean(finite**2))) + 1e-30 if finite.size else 1e-30


def _off(got: Any, want: Any, tolerance: float, least: float = 0.0) -> str | None:
    """Where and how far two arrays are apart, if any element is further than it may be.

    `least`: the size of what was summed, where sums are 0 but for rounding.
    """
    got, want = got.astype(np.float64), want.astype(np.float64)
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    if not got.size:
        return None
    allowed = tolerance * (np.abs(want) + max(least, _size(want)))
    with np.errstate(invalid="ignore"):
        bad = ~((got == want) | (np.abs(got - want) <= allowed) | (np.isnan(got) & np.isnan(want)))
    if not bad.any():
        return None
    with np.errstate(invalid="ignore"):
        at = np.unravel_index(np.argmax(np.where(bad, np.abs(got - want), -1.0)), got.shape)
    count = int(np.count_nonzero(bad))
    place = [int(i) for i in at]
    return f"{got[at]:.9g}, not {want[at]:.9g} at {place} ({count} of {got.size} elements)"


def _near(got: Any, want: Any, tolerance: float, least: float) -> str | None:
    """The same, relative to the largest element."""
    return _off(got, want, tolerance, max(least, float(np.abs(want).max(initial=0.0))))


def _distance(got: Any, want: Any, least: float) -> float:
    """How far two arrays are apart as a whole, beside the length of the second."""
    if got.shape != want.shape:
        return np.inf
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    apart = np.subtract(got, want, where=~same, out=np.zeros(got.shape))
    return float(np.linalg.norm(apart)) / (max(least, _size(want)) * max(1, want.size) ** 0.5)


# --- a layer by itself ---------------------------------------------------------------------------


def _layer_faults(done: Done, side: Ours) -> Iterator[str]:
    """What PyTorch makes differently of a layer's inputs and of its result's gradient."""
    theirs, tolerance = Theirs(), LAYER[side.dtype]
    inputs = [theirs.tensor(side.array(x), x.requires_grad) for x in done.inputs]
    buffers = [theirs.tensor(a) for a in done.state]
    out = LAYERS[done.kind](theirs, *inputs, *buffers, **done.attributes)
    shapes = ", ".join(str(tuple(x.shape)) for x in done.inputs)
    about = f"{done.name} of {shapes} {done.attributes or ''}".rstrip()
    pairs = [("result", side.array(done.out), theirs.array(out), 0.0)]
    for i, (got, want) in enumerate(zip(done.buffers, buffers, strict=True)):
        pairs.append((f"buffer {i}", side.array(got), theirs.array(want), 0.0))
    if done.out.requires_grad and done.out.grad is not None:
        g = side.array(done.out.grad)
        out.backward(theirs.tensor(g))
        for i, (mine, other) in enumerate(zip(done.inputs, inputs, strict=True)):
            if mine.requires_grad:
                got, want = side.array(mine.grad), theirs.array(other.grad)
                # a bias in front of a norm: its gradient is a sum that comes to nothing
                summed = _size(g) * (g.size / want.size) ** 0.5 if want.ndim == 1 else 0.0
                pairs.append((f"gradient of input {i}", got, want, summed))
    for what, got, want, summed in pairs:
        found = _off(got, want, tolerance, summed)
        if found is not None:
            yield f"{about}: {what} is {found}"


def _eager(network: Network, side: Ours, seed: int, arrays: Sequence[Any]) -> Net:
    net = Net(side, seed, apart=True)
    network.loss(net, *_given(net, arrays)).backward()
    return net


def _given(net: Net, arrays: Sequence[Any]) -> list[Any]:
    """The inputs; images have gradients too."""
    return [net.side.tensor(a, grad=a.dtype.kind == "f") for a in arrays]


# --- the whole -----------------------------------------------------------------------------------


class Result(NamedTuple):
    """Everything a step makes, by name."""

    layers: dict[str, Any]
    gradients: dict[str, Any]


def _result(net: Net, names: Sequence[str], outs: Sequence[Any], inputs: Sequence[Any]) -> Result:
    array = net.side.array
    layers = {name: array(out) for name, out in zip(names, outs, strict=True)}
    layers |= {name: array(b) for name, b in net.buffers.items()}
    gradients = {name: array(p.grad) for name, p in net.parameters.items()}
    floats = [x for x in inputs if x.requires_grad]
    gradients |= {f"input {i}": array(x.grad) for i, x in enumerate(floats)}
    return Result(layers, gradients)


def _plain(network: Network, net: Net, arrays: Sequence[Any]) -> Result:
    """A step without anything between the layers."""
    inner, inputs = net.again(), _given(net, arrays)
    network.loss(inner, *inputs).backward()
    names = [done.name for done in inner.done]
    return _result(net, names, [done.out for done in inner.done], inputs)


def _compiled(
    network: Network, net: Net, arrays: Sequence[Any], names: Sequence[str], verify: bool
) -> Result:
    """The same step, compiled; its second call is given back, which replays the first."""

    def step(*inputs: Any) -> list[Any]:
        inner = net.sharing()
        network.loss(inner, *inputs).backward()
        return [done.out for done in inner.done]

    jitted = eg.jit(step, verify=verify)
    for _ in range(2):
        net.again()
        inputs = _given(net, arrays)
        outs = jitted(*inputs)
    return _result(net, names, outs, inputs)


def _least(arrays: dict[str, Any]) -> float:
    return LEAST * float(np.median([_size(array) for array in arrays.values()]))


def _whole_faults(got: Result, want: Result, tolerance: float) -> Iterator[str]:
    """Where a network differs, element by element."""
    for kind, ours, others in zip(("", "gradient of "), got, want, strict=True):
        least = _least(others)
        for name, array in ours.items():
            found = _near(array, others[name], tolerance, least)
            if found is not None:
                yield f"{kind}{name} is {found}"


def _compiled_faults(
    got: Result, want: Result, eager: Result, should: Result, dtype: str
) -> Iterator[str]:
    """Where a compiled network is further from float64 than eager mode is, each compared with what
    float64 gives on the sides of kinks that it took."""
    rows = zip(("", "gradient of "), got, want, eager, should, strict=True)
    for kind, ours, others, usual, usually in rows:
        least = _least(others)
        noise = {name: _distance(a, usually[name], least) for name, a in usual.items()}
        middle = float(np.median(list(noise.values())))
        for name, array in ours.items():
            allowed = TIMES * max(noise[name], middle) + COMPILED[dtype]
            found = _distance(array, others[name], least)
            if not found <= allowed:
                yield f"{kind}{name} is apart by {found:.3g} of its length, eager {noise[name]:.3g}"


def check(
    name: str, device: str, dtype: str, seed: int, scale: int = 1, verify: bool = False
) -> list[str]:
    """Every difference of one network in one dtype; `verify`: also each kernel, by NumPy."""
    network, side = NETWORKS[name], Ours(device, dtype)
    arrays = network.inputs(np.random.default_rng(seed), scale)
    title = f"{name}, {dtype} on {device}, seed {seed}"
    net = _eager(network, side, seed, arrays)
    found = [f"{title}: {fault}" for done in net.done for fault in _layer_faults(done, side)]
    net = net.sharing()  # without what the layers kept
    eager = _plain(network, net, arrays)
    if dtype in WHOLE and not found:  # what is wrong in one layer is wrong in all that follow
        theirs = _plain(network, Net(Theirs(), seed), arrays)
        faults = _whole_faults(eager, theirs, WHOLE[dtype])
        found += [f"{title}, as a whole: {fault}" for fault in faults]
    names = [n for n in eager.layers if n not in net.buffers]
    made = _compiled(network, net, arrays, names, verify)
    on_sides = (_plain(network, Net(Theirs(), seed, seen=r.layers), arrays) for r in (made, eager))
    want, should = on_sides
    faults = _compiled_faults(made, want, eager, should, dtype)
    return found + [f"{title}, compiled: {fault}" for fault in faults]


def dtypes_of(device: str) -> tuple[str, ...]:
    return ("float64", "float32") if device == "cpu" else ("float32",)


def run(device: str, seed: int, scale: int = 1) -> list[str]:
    """Every difference of all networks, in the dtypes that are compared on a device."""
    return [
        fault
        for name in NETWORKS
        for dtype in dtypes_of(device)
        for fault in check(name, device, dtype, seed, scale)
    ]
