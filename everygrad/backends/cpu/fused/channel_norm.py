"""Batch norm over images (batch, channels, places): moments, the norm, its derivatives.

Each kernel takes the channels of a range one after the other, for all sizes, and goes over a
channel several times while it is in the cache: the moments are found again rather than kept. The
places of a channel of one image are contiguous: they are summed in their dtype, by vectors, and the
sums of the images in float64.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.fused.row_loops import GRAIN
from everygrad.backends.cpu.kernels.half_conversions import converted, widened
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.backends.cpu.runtime.addresses import address_of
from everygrad.backends.cpu.runtime.parallel_for import spread
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.core.shapes import Shape, size_of


class _ChannelWriter:
    """Writes kernel(lo, hi, images, channels, places, eps, out, *arrays) over channels [lo, hi).

    `eps` is a float64 by its bits. `kind` is the elements' type.
    """

    def __init__(self, kind: str, arrays: Sequence[str]) -> None:
        self.kind = kind
        self.arrays = arrays
        self.lines: list[str] = []
        self.passes = 0

    def add(self, *lines: str) -> None:
        self.lines += [f"  {line}" for line in lines]

    def narrowed(self, name: str, value: str) -> None:
        """A float64 in the elements' type."""
        step = (
            f"fptrunc double {value} to float"
            if self.kind == "float"
            else f"fadd double {value}, 0.0"
        )
        self.add(f"%{name} = {step}")

    def widened(self, name: str, value: str) -> None:
        step = (
            f"fpext float {value} to double"
            if self.kind == "float"
            else f"fadd double {value}, 0.0"
        )
        self.add(f"%{name} = {step}")

    def of_channel(self, name: str, array: str) -> None:
        """A number of this channel, as float64 under the same name with .d behind it."""
        self.add(
            f"%{name}.p = getelementptr inbounds {self.kind}, ptr %{array}, i64 %c",
            f"%{name} = load {self.kind}, ptr %{name}.p",
        )
        self.widened(f"{name}.d", f"%{name}")

    def moments(self) -> None:
        """%mean.d and %var.d of the channel, and %mean, by two passes over x."""

        def one() -> Sequence[str]:
            self.element("x.one", "x")
            return ("%x.one",)

        def square() -> Sequence[str]:
            self.element("x.two", "x")
            kind = self.kind
            self.add(f"%from = fsub {kind} %x.two, %mean", f"%square = fmul {kind} %from, %from")
            return ("%square",)

        (total,) = self.traverse(one)
        self.add(f"%mean.d = fdiv double {total}, %count")
        self.narrowed("mean", "%mean.d")
        (squares,) = self.traverse(square)
        self.add(f"%var.d = fdiv double {squares}, %count")

    def scale(self) -> None:
        """%rstd.d, 1 / sqrt(variance + eps), after the moments."""
        self.moments()
        self.add(
            "%eps = bitcast i64 %epsbits to double",
            "%moved = fadd double %var.d, %eps",
            "%root = call double @llvm.sqrt.f64(double %moved)",
            "%rstd.d = fdiv double 1.0, %root",
        )

    def element(self, name: str, array: str) -> None:
        """An element of an array in the loop over places."""
        self.add(
            f"%{name}.p = getelementptr inbounds {self.kind}, ptr %{array}, i64 %i{self.passes}",
            f"%{name} = load {self.kind}, ptr %{name}.p",
        )

    def store(self, value: str) -> None:
        k = self.passes
        self.add(
            f"%to{k} = getelementptr inbounds {self.kind}, ptr %out, i64 %i{k}",
            f"store {self.kind} {value}, ptr %to{k}",
        )

    def traverse(self, body: Callable[[], Sequence[str]]) -> list[str]:
        """A pass over the channel; `body` writes what is done with one element and names what is
        summed. Returns the sums."""
        k, kind = self.passes, self.kind
        self.add(f"br label %before{k}")
        self.lines += [f"before{k}:", f"  br label %images{k}", f"images{k}:"]
        outer = len(self.lines)
        self.add(
            f"%row{k} = mul i64 %n{k}, %step",
            f"%base{k} = add i64 %row{k}, %first",
            f"br label %places{k}",
        )
        self.lines.append(f"places{k}:")
        inner = len(self.lines)
        self.add(f"%i{k} = add i64 %base{k}, %p{k}")
        summed = body()
        for j, value in enumerate(summed):
            self.add(f"%acc.next{k}.{j} = fadd reassoc {kind} %acc{k}.{j}, {value}")
        self.add(
            f"%p.next{k} = add nuw nsw i64 %p{k}, 1",
            f"%p.more{k} = icmp slt i64 %p.next{k}, %places",
            f"br i1 %p.more{k}, label %places{k}, label %end{k}",
        )
        self.lines.append(f"end{k}:")
        for j in range(len(summed)):
            self.widened(f"wide{k}.{j}", f"%acc.next{k}.{j}")
            self.add(f"%sum.next{k}.{j} = fadd double %sum{k}.{j}, %wide{k}.{j}")
        self.add(
            f"%n.next{k} = add nuw nsw i64 %n{k}, 1",
            f"%n.more{k} = icmp slt i64 %n.next{k}, %images",
            f"br i1 %n.more{k}, label %images{k}, label %after{k}",
        )
        self.lines.append(f"after{k}:")
        phis = [f"  %p{k} = phi i64 [ 0, %images{k} ], [ %p.next{k}, %places{k} ]"]
        phis += [
            f"  %acc{k}.{j} = phi {kind} [ 0.0, %images{k} ], [ %acc.next{k}.{j}, %places{k} ]"
            for j in range(len(summed))
        ]
        self.lines[inner:inner] = phis
        phis = [f"  %n{k} = phi i64 [ 0, %before{k} ], [ %n.next{k}, %end{k} ]"]
        phis += [
            f"  %sum{k}.{j} = phi double [ 0.0, %before{k} ], [ %sum.next{k}.{j}, %end{k} ]"
            for j in range(len(summed))
        ]
        self.lines[outer:outer] = phis
        self.passes += 1
        return [f"%sum.next{k}.{j}" for j in range(len(summed))]

    def give(self, value: str, place: int) -> None:
        """Store a float64 in the vector of channels number `place`, behind `%behind` elements."""
        self.narrowed(f"given{place}", value)
        self.add(
            f"%skip{place} = mul i64 %channels, {place}",
            f"%slot{place} = add i64 %skip{place}, %c",
            f"%there{place} = add i64 %slot{place}, %behind",
            f"%given.p{place} = getelementptr inbounds {self.kind}, ptr %out, i64 %there{place}",
            f"store {self.kind} %given{place}, ptr %given.p{place}",
        )

    def text(self, behind: str) -> str:
        given = ["i64 %lo", "i64 %hi", "i64 %images", "i64 %channels", "i64 %places",
                 "i64 %epsbits", "ptr noalias %out",
                 *(f"ptr noalias readonly %{a}" for a in self.arrays)]  # fmt: skip
        return "\n".join([
            "declare double @llvm.sqrt.f64(double)",
            f"define void @channels({', '.join(given)}) {engine().attributes} {{",
            "entry:",
            "  %step = mul i64 %channels, %places",
            "  %size = mul i64 %step, %images",
            f"  %behind = add i64 {behind}, 0",
            "  %each = mul i64 %images, %places",
            "  %count = sitofp i64 %each to double",
            "  br label %channel",
            "channel:",
            "  %c = phi i64 [ %lo, %entry ], [ %c.next, %channel.end ]",
            "  %first = mul i64 %c, %places",
            *self.lines,
            "  br label %channel.end",
            "channel.end:",
            "  %c.next = add i64 %c, 1",
            "  %c.more = icmp slt i64 %c.next, %hi",
            "  br i1 %c.more, label %channel, label %done",
            "done:",
            "  ret void",
            "}",
            "",
        ])  # fmt: skip


def _moments(kind: str) -> str:
    """Mean and variance of each channel, one vector behind the other."""
    w = _ChannelWriter(kind, ("x",))
    w.moments()
    w.give("%mean.d", 0)
    w.give("%var.d", 1)
    return w.text("0")


def _norm(kind: str) -> str:
    w = _ChannelWriter(kind, ("x", "weight", "bias"))
    w.scale()
    w.of_channel("weight.c", "weight")
    w.of_channel("bias.c", "bias")
    w.add("%scale.d = fmul double %weight.c.d, %rstd.d")
    w.narrowed("scale", "%scale.d")

    def one() -> Sequence[str]:
        w.element("x0", "x")
        w.add(
            f"%off = fsub {kind} %x0, %mean",
            f"%scaled = fmul {kind} %off, %scale",
            f"%y = fadd {kind} %scaled, %bias.c",
        )
        w.store("%y")
        return ()

    w.traverse(one)
    return w.text("0")


def _grads(kind: str) -> str:
    """The derivatives by x, weight and bias, one behind the other."""
    w = _ChannelWriter(kind, ("g", "x", "weight"))
    w.scale()
    w.of_channel("weight.c", "weight")

    def sums() -> Sequence[str]:
        w.element("g0", "g")
        w.element("x0", "x")
        w.add(f"%off0 = fsub {kind} %x0, %mean", f"%along = fmul {kind} %g0, %off0")
        return "%g0", "%along"

    def one() -> Sequence[str]:
        w.element("g1", "g")
        w.element("x1", "x")
        w.add(
            f"%off1 = fsub {kind} %x1, %mean",
            f"%pulled = fmul {kind} %off1, %pull",
            f"%centred = fsub {kind} %g1, %gmean",
            f"%rest = fsub {kind} %centred, %pulled",
            f"%dx = fmul {kind} %rest, %scale",
        )
        w.store("%dx")
        return ()

    total, along = w.traverse(sums)
    w.add(
        f"%gmean.d = fdiv double {total}, %count",
        f"%along.d = fdiv double {along}, %count",
        "%rstd.square = fmul double %rstd.d, %rstd.d",
        "%pull.d = fmul double %along.d, %rstd.square",
        "%scale.d = fmul double %weight.c.d, %rstd.d",
        f"%dweight = fmul double {along}, %rstd.d",
    )
    for name in ("gmean", "pull", "scale"):
        w.narrowed(name, f"%{name}.d")
    w.give("%dweight", 0)
    w.give(total, 1)
    w.traverse(one)
    return w.text("%size")


_SOURCES = {"moments": _moments, "norm": _norm, "grads": _grads}


@lru_cache(maxsize=16)
def _compiled(which: str, dtype: Any) -> int:
    kind = "float" if dtype.itemsize == 4 else "double"
    return engine().compile(_SOURCES[which](kind), "channels")


def _run(which: str, shape: Shape, x: Any, arrays: Sequence[Any], eps: float = 0.0) -> Any:
    """A kernel's result of `shape`; half floats are computed in float32."""
    images, channels, places = x.shape[0], x.shape[1], size_of(x.shape[2:])
    held = [np.require(widened(a), requirements=("C", "A")) for a in arrays]
    out = empty(shape, held[0].dtype)
    (bits,) = struct.unpack("<q", struct.pack("<d", eps))
    words = [images, channels, places, bits, address_of(out), *map(address_of, held)]
    grain = max(1, GRAIN // max(1, images * places))
    if x.size:
        spread(_compiled(which, out.dtype), channels, grain, words)
    else:
        out[...] = np.nan if which == "moments" else 0
    return converted(out, x.dtype)


def channel_moments(x: Any) -> Any:
    return _run("moments", (2, x.shape[1]), x, (x,))


def channel_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return _run("norm", x.shape, x, (x, weight, bias), eps)


def channel_norm_grads(g: Any, x: Any, weight: Any, eps: float) -> Any:
    return _run("grads", (x.size + 2 * x.shape[1],), x, (g, x, weight), eps)


KERNELS: dict[str, Callable[..., Any]] = {
    "channel_moments": channel_moments,
    "channel_norm": channel_norm,
    "channel_norm_grads": channel_norm_grads,
}
