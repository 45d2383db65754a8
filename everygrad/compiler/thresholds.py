"""The numbers at which kernel generators change their ways: tiles, slabs, blocks, thresholds.

A generator declares each of them where it defines it,

    PANEL = edge(__name__, "PANEL", 32 << 10, "bytes")  # of B that stay in the first cache

and uses what it declared: there is no second list to keep level. `make sweep` draws shapes just
below, at and above these numbers and their multiples.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

# What a number counts:
#   size      elements along one axis: rows, columns, channels, keys, lanes, terms of a sum
#   elements  elements of a whole array
#   bytes     of a whole array
#   products  multiply-adds of a whole op
#   count     of things that a shape does not say: tensors, taps, blocks, threads
Unit = Literal["size", "elements", "bytes", "products", "count"]


class Edge(NamedTuple):
    """One number, who uses it and what it counts."""

    device: str
    generator: str
    name: str
    value: int
    unit: Unit


_declared: dict[tuple[str, str, str], Edge] = {}


def edge(module: str, name: str, value: int, unit: Unit) -> int:
    """`value`, noted as a number at which the generator `module`, its __name__, changes."""
    _, part, *inner, generator = module.split(".")
    device = inner[0] if part == "backends" and inner else ""
    _declared[device, generator, name] = Edge(device, generator, name, value, unit)
    return value


def declared(device: str) -> list[Edge]:
    """By the generators of a device, and by what all devices share, that were imported so far."""
    return [e for e in _declared.values() if e.device in (device, "")]
