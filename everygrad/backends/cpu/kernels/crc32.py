"""CRC-32, zlib's checksum, at the rate of memory: by the processor's carry-less products.

Four accumulators of 16 bytes run over the data. What they hold is a polynomial that the checksum's
own divides with the same remainder, 64 bytes further on: x**512 * a = (x**512 mod P) * a. In the
end they are 64 bytes whose checksum is that of all. zlib sums these, the last bytes that fill no
64, and everything where a processor has no such products.
"""

from __future__ import annotations

import ctypes
import zlib
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.llvm.compiler import engine

# bytes summed by zlib before the function is compiled, which takes as long as they did
_PATIENCE = 1 << 26
_SHORT = 1 << 12  # bytes that zlib sums in the time of a call
_LANES = 4  # accumulators: a product takes that long, and they do not wait for each other
_ONES = 0xFFFFFFFF
_P = 0x104C11DB7


def _power(n: int) -> int:
    """x**n mod P, with the bits in the order of the checksum's, one place up."""
    rest = 1
    for _ in range(n):
        rest <<= 1
        rest ^= _P if rest >> 32 else 0
    return int(f"{rest:032b}"[::-1], 2) << 1


def _text() -> str:
    """`fold(data, count, crc, out)`: the accumulators after `count` times 64 bytes."""
    # the halves of an accumulator are 64 places apart; the product of two mirrored numbers is one
    # place off, which `_power` makes up for
    far, near = _power(128 * _LANES + 32), _power(128 * _LANES - 32)
    lanes = range(_LANES)
    load = "load <2 x i64>, ptr"
    lines = [
        "declare <2 x i64> @llvm.x86.pclmulqdq(<2 x i64>, <2 x i64>, i8 immarg)",
        f"define void @fold(ptr %data, i64 %count, i32 %crc, ptr %out) {engine().attributes} {{",
        "entry:",
    ]
    for i in lanes:
        lines.append(f"  %d{i} = getelementptr i8, ptr %data, i64 {16 * i}")
        lines.append(f"  %s{i} = {load} %d{i}, align 1")
    lines += [
        "  %wide = zext i32 %crc to i64",
        "  %first = insertelement <2 x i64> zeroinitializer, i64 %wide, i32 0",
        "  %t0 = xor <2 x i64> %s0, %first",
        "  %more = icmp ugt i64 %count, 1",
        "  br i1 %more, label %loop, label %end",
        "loop:",
        "  %k = phi i64 [ 1, %entry ], [ %next, %loop ]",
    ]
    begun = [f"%{'t' if i == 0 else 's'}{i}" for i in lanes]
    for i in lanes:
        lines.append(f"  %a{i} = phi <2 x i64> [ {begun[i]}, %entry ], [ %n{i}, %loop ]")
    lines.append(f"  %at = mul i64 %k, {16 * _LANES}")
    for i in lanes:
        product = f"call <2 x i64> @llvm.x86.pclmulqdq(<2 x i64> %a{i}, <2 x i64> <i64 {far}, "
        product += f"i64 {near}>, i8 "
        lines += [
            f"  %o{i} = add i64 %at, {16 * i}",
            f"  %p{i} = getelementptr i8, ptr %data, i64 %o{i}",
            f"  %x{i} = {load} %p{i}, align 1",
            f"  %l{i} = {product}0)",
            f"  %h{i} = {product}17)",
            f"  %y{i} = xor <2 x i64> %l{i}, %h{i}",
            f"  %n{i} = xor <2 x i64> %y{i}, %x{i}",
        ]
    lines += [
        "  %next = add i64 %k, 1",
        "  %again = icmp ult i64 %next, %count",
        "  br i1 %again, label %loop, label %end",
        "end:",
    ]
    for i in lanes:
        lines.append(f"  %e{i} = phi <2 x i64> [ {begun[i]}, %entry ], [ %n{i}, %loop ]")
    for i in lanes:
        lines.append(f"  %q{i} = getelementptr i8, ptr %out, i64 {16 * i}")
        lines.append(f"  store <2 x i64> %e{i}, ptr %q{i}, align 1")
    return "\n".join([*lines, "  ret void", "}", ""])


@lru_cache(maxsize=1)
def _fold() -> Any:
    """The compiled function, or None where the processor has no carry-less products."""
    if not engine().features.get("pclmul"):
        return None
    address = engine().functions(_text(), ("fold",), vectorise=False)["fold"]
    words = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p)
    return ctypes.CFUNCTYPE(None, *words)(address)


def folded(data: memoryview, crc: int = 0) -> int:
    """zlib.crc32(data, crc), by carry-less products where there are some. The interpreter lock is
    released meanwhile."""
    fold, count = _fold(), len(data) // (16 * _LANES)
    if fold is None or not count:
        return zlib.crc32(data, crc)
    out = ctypes.create_string_buffer(16 * _LANES)
    fold(np.frombuffer(data, np.uint8).ctypes.data, count, crc ^ _ONES, out)
    crc = zlib.crc32(out.raw, _ONES)  # of these, from a register of zeros
    return zlib.crc32(data[count * 16 * _LANES :], crc)


class _Summed:
    """How many bytes zlib has summed in this process; threads that count at once lose some."""

    nbytes = 0


def crc32(data: memoryview, crc: int = 0) -> int:
    """zlib.crc32 of bytes that lie one after the other, as an unsigned number.

    >>> crc32(memoryview(b"123456789")) == 0xCBF43926
    True
    """
    if len(data) < _SHORT:
        return zlib.crc32(data, crc)
    if _Summed.nbytes < _PATIENCE:
        _Summed.nbytes += len(data)
        return zlib.crc32(data, crc)
    return folded(data, crc)
