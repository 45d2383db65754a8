"""Buffers larger than one binding: bound as several windows, one after the other.

Kernel generators ignore this. Where one of a kernel's buffers is too large, its source is
rewritten: each access to that buffer becomes a call of a function that finds the window. So every
kernel works on large buffers too, at the cost of a comparison or two for each access.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from everygrad.errors import CompileError

ALIGNMENT = 256  # of a window's start: what every device accepts

_DECLARED = re.compile(r"@group\(0\) @binding\(\d+\) var<([^>]*)> (\w+): ([^;]*);")
_ATOMIC = re.compile(r"atomic(\w+)\(\s*&\s*$")
_ASSIGNED = re.compile(r"\s*=(?!=)")
_UPDATED = re.compile(r"\s*(?:[-+*/%|&^]|<<|>>)=|\s*(?:\.\w+|\[[^]]*\])\s*=(?!=)")
_SIZES = {
    **dict.fromkeys(("u32", "i32", "f32", "atomic<u32>", "atomic<i32>"), 4),
    **{f"vec{n}<{t}>": 4 * n for n in (2, 4) for t in ("u32", "i32", "f32")},
    **{"f16": 2, "vec2<f16>": 4, "vec4<f16>": 8},
}
# how many more arguments an atomic takes, and which return nothing
_OPERANDS = {"Load": 0, "CompareExchangeWeak": 2}
_NOTHING = ("Store",)


def span(limit: int) -> int:
    """The bytes of one window, for a device that binds `limit` bytes at once."""
    return limit // ALIGNMENT * ALIGNMENT


def cut(size: int, limit: int) -> list[tuple[int, int]]:
    """Where the windows of a buffer start, and their sizes.

    >>> cut(700, 700), cut(700, 600)
    ([(0, 700)], [(0, 512), (512, 188)])
    """
    if size <= limit:
        return [(0, size)]
    step = span(limit)
    return [(at, min(step, size - at)) for at in range(0, size, step)]


@lru_cache(maxsize=512)
def widened(name: str, source: str, counts: tuple[int, ...], limit: int) -> str:
    """The kernel's source for so many windows of each of its storage buffers, in order."""
    declared = list(_DECLARED.finditer(source))
    first = declared[0].start()
    body = _DECLARED.sub("", source[first:])
    lines = [source[:first]]  # extensions must come before everything else
    binding = 0
    for found, count in zip(declared, [*counts, 1], strict=True):  # the uniform is the last one
        space, buffer, kind = found.groups()
        names = [buffer] if count == 1 else [f"{buffer}_{i}" for i in range(count)]
        for each in names:
            lines.append(f"@group(0) @binding({binding}) var<{space}> {each}: {kind};\n")
            binding += 1
        if count > 1:
            body, used = _rewritten(name, body, buffer)
            lines += _accessors(name, buffer, names, kind, used, limit)
    return "".join(lines) + body


def _rewritten(name: str, text: str, buffer: str) -> tuple[str, set[str]]:
    """Accesses as calls, and which kinds there are: "at", "put", and atomics by name."""
    used: set[str] = set()
    made: list[str] = []
    at = 0
    for found in re.finditer(rf"(?<![.\w]){buffer}\b", text):  # not a vector's part of this name
        if found.start() < at:
            continue  # inside an index that was rewritten already
        is_local = _is_local(text, buffer, found.start())
        if is_local and text[found.end()] != "[":
            continue
        if is_local or text[found.end()] != "[":
            raise _refused(name, text, found.start())
        before = text[at : found.start()]
        end = _closing(text, found.end())
        index, inner = _rewritten(name, text[found.end() + 1 : end], buffer)
        used |= inner
        atomic = _ATOMIC.search(before)
        if atomic:
            what, before = atomic[1], before[: atomic.start()]
            end += 1  # the rest of the call stays
            made.append(f"{before}{buffer}_{what}(u32({index})")
        elif _UPDATED.match(text, end + 1) or before.rstrip().endswith("&"):
            raise _refused(name, text, found.start())
        elif assigned := _ASSIGNED.match(text, end + 1):
            what, semicolon = "put", text.index(";", end)
            value, inner = _rewritten(name, text[assigned.end() : semicolon], buffer)
            used |= inner
            made.append(f"{before}{buffer}_put(u32({index}), {value.strip()})")
            end = semicolon
        else:
            what, end = "at", end + 1
            made.append(f"{before}{buffer}_at(u32({index}))")
        used.add(what)
        at = end
    return "".join(made) + text[at:], used


def _is_local(text: str, buffer: str, at: int) -> bool:
    """Whether the function declares a variable with the buffer's name before this position."""
    function = text.rfind("fn ", 0, at)
    declared = re.compile(rf"\b(?:let|var)\s+{buffer}\b")
    return declared.search(text, max(function, 0), at + len(buffer)) is not None


def _closing(text: str, start: int) -> int:
    """The position of the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"[": 1, "]": -1}.get(text[i], 0)
        if not depth:
            return i
    raise AssertionError("a bracket is not closed")


def _refused(name: str, text: str, at: int) -> CompileError:
    line = text[text.rfind("\n", 0, at) + 1 : text.find("\n", at)].strip()
    return CompileError(
        f"webgpu: {name} cannot take a tensor larger than one binding "
        f"(max-storage-buffer-binding-size), because of {line!r}; split the tensor"
    )


def _accessors(
    name: str, buffer: str, names: Sequence[str], kind: str, used: set[str], limit: int
) -> list[str]:
    """The functions that find the window of an index."""
    element = kind.removeprefix("array<").removesuffix(">")
    if element not in _SIZES:
        raise _refused(name, f"\n{kind}\n", 1)
    step = span(limit) // _SIZES[element]
    plain = element.removeprefix("atomic<").removesuffix(">") if "atomic" in element else element
    return [_accessor(buffer, names, plain, what, step) for what in sorted(used)]


def _accessor(buffer: str, names: Sequence[str], kind: str, what: str, step: int) -> str:
    """One function: the access `what` to the element at an index."""
    count = _OPERANDS.get(what, 1) if what != "at" else 0
    given = "".join(f", v{k}: {kind}" for k in range(count))
    values = "".join(f", v{k}" for k in range(count))
    head, result = "", f" -> {kind}"
    form = f"return atomic{what}(&{{0}}{values});"
    if what == "at":
        form = "return {0};"
    elif what == "put":
        result, form = "", "{0} = v0; return;"
    elif what in _NOTHING:
        result, form = "", f"atomic{what}(&{{0}}{values}); return;"
    elif what == "CompareExchangeWeak":  # the built-in result has no name
        head = f"struct {buffer}_tried {{ old_value: {kind}, exchanged: bool }}\n"
        result = f" -> {buffer}_tried"
        form = (
            f"let r = atomic{what}(&{{0}}{values}); "
            f"return {buffer}_tried(r.old_value, r.exchanged);"
        )
    lines = [f"{head}fn {buffer}_{what}(i: u32{given}){result} {{"]
    for k, each in enumerate(names[:-1]):
        place = f"{each}[i - {k * step}u]"
        lines.append(f"  if (i < {(k + 1) * step}u) {{ {form.format(place)} }}")
    last = f"{names[-1]}[i - {(len(names) - 1) * step}u]"
    return "\n".join([*lines, f"  {form.format(last)}", "}\n"])
