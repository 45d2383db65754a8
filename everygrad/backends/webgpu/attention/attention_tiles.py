"""The tiles that attention's kernels are made of; attention.py says what they do with them.

A kernel has rows (queries, or keys in the derivative by keys and values), which stay, and columns,
which it loops over, 64 at a time. A workgroup computes 64 rows; operands go through 16 KB of
workgroup memory in slices of 16 terms. A thread has `vectors` groups of four rows, and as many of
four columns. Its value for row group r and column j is a vec4<f32> whose name ends in both: s0_3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from everygrad.compiler.thresholds import edge

TILE = edge(__name__, "TILE", 64, "size")
SLICE = edge(__name__, "SLICE", 16, "size")  # terms, or columns, in workgroup memory at a time
CHUNK = edge(__name__, "CHUNK", 64, "size")  # columns of a result that all threads make at once
SLAB = edge(__name__, "SLAB", 2 * CHUNK, "size")  # columns of a result that a workgroup makes
PARTS = "xyzw"
_PADDED = TILE // 4 + 1  # vectors between terms: padding that avoids bank conflicts


def chunks(width: int) -> int:
    """Of the columns of a result, how many chunks a workgroup makes."""
    return min(SLAB // CHUNK, -(-width // CHUNK))


def slabs(*widths: int) -> int:
    """Workgroups that share the columns of results so wide."""
    return max([1, *(-(-width // SLAB) for width in widths)])


class TileOperand(NamedTuple):
    """An operand: its reader is name(start, row, column); `width` is a name too."""

    name: str
    width: str
    chunks: int
    scale: str = ""  # what its elements are multiplied by

    def at(self, row: str, column: str) -> str:
        value = f"{self.name}({self.name}_start, {row}, {column})"
        return f"{value} * {self.scale}" if self.scale else value


class TileWriter:
    """Writes the parts of a kernel. The surrounding text defines row0, col0, row_count,
    column_count, batch and slab, and l, the thread's number."""

    def __init__(self, vectors: int) -> None:
        self.vectors = vectors
        self.side = TILE // 4 // vectors  # threads along a side of the tile
        self.threads = self.side**2
        self.columns = range(4 * vectors)
        self.unrolled = 4 // vectors**2  # as much text either way: compile time grows with it

    @property
    def each(self) -> range:
        """The numbers of the thread's row groups."""
        return range(self.vectors)

    def pairs(self) -> Iterator[tuple[int, int]]:
        return ((r, j) for r in self.each for j in self.columns)

    def vector_index(self, of: str, number: int) -> str:
        """The number in the tile of the thread's row group (of ty) or column group (of tx)."""
        return f"({of} + {self.side * number}u)"

    def column(self, j: int) -> str:
        return f"(col0 + {self.vector_index('tx', j // 4)} * 4u + {j % 4}u)"

    def row(self, r: int, i: int) -> str:
        return f"(row0 + {self.vector_index('ty', r)} * 4u + {i}u)"

    def of_rows(self, r: int, form: str) -> str:
        """A number for each row of a group, by an expression in {row}, which is clamped."""
        rows = (f"min({self.row(r, i)}, row_count - 1u)" for i in range(4))
        return f"vec4<f32>({', '.join(form.format(row=row) for row in rows)})"

    def begin(self) -> str:
        text = f"  let ty = l / {self.side}u;\n  let tx = l % {self.side}u;\n"
        for r in self.each:
            text += f"  let rows{r} = vec4<u32>({', '.join(self.row(r, i) for i in range(4))});\n"
        return text

    def shared(self, most: int) -> str:
        """Workgroup memory: an area for slices (mixing `most` chunks at a time), and one word per
        thread and row group for block reductions."""
        size = max(2 * SLICE * _PADDED, (1 + most) * SLICE * 16)
        return (
            f"var<workgroup> area: array<vec4<f32>, {size}>;\n"
            f"var<workgroup> row_values: array<vec4<f32>, {self.vectors * self.threads}>;\n"
        )

    def _fill(self, body: str) -> str:
        """`body` for c from 0 to 255, which is f = c % 16 and s = c / 16."""
        return (
            f"      for (var c = l; c < 256u; c = c + {self.threads}u) {{\n"
            f"        let f = c & 15u;\n        let s = c >> 4u;\n{body}      }}\n"
        )

    def turns(self, products: Sequence[int], mixes: int) -> int:
        """The most iterations that all loops of a thread take for one tile of columns: products of
        so many terms, and mixes."""
        fill = 256 // self.threads
        slices = sum(-(-terms // SLICE) for terms in products)
        reduced = self.vectors * self.side
        each = 1 + fill + SLICE // self.unrolled
        return 1 + slices * each + reduced + mixes * (TILE // SLICE) * (1 + fill + SLICE)

    # --- rows by columns -------------------------------------------------------------------------

    def product(self, to: str, a: TileOperand, b: TileOperand) -> str:
        """Sums over the terms of row times column."""
        text = "".join(f"    var {to}{r}_{j} = vec4<f32>();\n" for r, j in self.pairs())
        text += f"    for (var t0 = 0u; t0 < {a.width}; t0 = t0 + {SLICE}u) {{\n"
        fill = "        let t = t0 + f;\n"
        for m, start, limit, at in (
            (a, "row0", "row_count", 0),
            (b, "col0", "column_count", SLICE * _PADDED),
        ):
            fill += f"        var vector{at} = vec4<f32>();\n        if (t < {a.width}) {{\n"
            for i, part in enumerate(PARTS):
                row = f"min({start} + s * 4u + {i}u, {limit} - 1u)"
                fill += f"          vector{at}.{part} = {m.at(row, 't')};\n"
            fill += f"        }}\n        area[{at}u + f * {_PADDED}u + s] = vector{at};\n"
        text += "      workgroupBarrier();\n" + self._fill(fill) + "      workgroupBarrier();\n"
        end, step = SLICE * _PADDED, self.unrolled * _PADDED
        text += f"      for (var u = 0u; u < {end}u; u = u + {step}u) {{\n"
        for k in range(self.unrolled):
            for r in self.each:
                left, right = k * _PADDED, (SLICE + k) * _PADDED
                text += f"        let a{k}{r} = area[u + {left}u + {self.vector_index('ty', r)}];\n"
                text += (
                    f"        let b{k}{r} = area[u + {right}u + {self.vector_index('tx', r)}];\n"
                )
            for r, j in self.pairs():
                sum_ = f"{to}{r}_{j}"
                text += f"        {sum_} = {sum_} + a{k}{r} * b{k}{j // 4}.{PARTS[j % 4]};\n"
        return text + "      }\n    }\n"

    def along(self, combine: str, values: list[str]) -> str:
        """Values of all columns combined two by two."""
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [combine.format(a, b) for a, b in pairs]
        return values[0]

    def across(self, name: str, combine: str) -> str:
        """Lines that combine each row's value over all threads that share the row."""
        text = "".join(f"    row_values[{r * self.threads}u + l] = {name}{r};\n" for r in self.each)
        text += "    workgroupBarrier();\n"
        for r in self.each:
            first = f"{r * self.threads}u + l - tx"
            text += f"    {name}{r} = row_values[{first}];\n"
            text += f"    for (var i = 1u; i < {self.side}u; i = i + 1u) {{\n"
            value = combine.format(f"{name}{r}", f"row_values[{first} + i]")
            text += f"      {name}{r} = {value};\n    }}\n"
        return text + "    workgroupBarrier();\n"

    # --- results ---------------------------------------------------------------------------------

    def _sums(self, name: str, m: TileOperand) -> Iterator[tuple[str, int, int, str]]:
        """A thread's results: the name of a vector, its row group, row and first column."""
        for chunk in range(m.chunks):
            for r in self.each:
                for c in self.each:
                    first = (
                        f"(slab * {SLAB}u + {chunk * CHUNK}u + {self.vector_index('tx', c)} * 4u)"
                    )
                    for i in range(4):
                        yield f"{name}{chunk}{r}{c}{i}", r, i, first

    def sums(self, name: str, m: TileOperand) -> str:
        """Results that start as 0, in rows like those of m."""
        return "".join(f"  var {x} = vec4<f32>();\n" for x, *_ in self._sums(name, m))

    def shrink(self, name: str, m: TileOperand, by: str) -> str:
        """All results of a row times the row's factor."""
        return "".join(
            f"    {x} = {x} * {by}{r}.{PARTS[i]};\n" for x, r, i, _ in self._sums(name, m)
        )

    def mix(self, to: str, p: str, m: TileOperand) -> str:
        """Lines that add to each row's results the rows of m for all columns, weighted by p."""
        text = f"    for (var z = 0u; z < {TILE // SLICE}u; z = z + 1u) {{\n"
        text += "      workgroupBarrier();\n"
        for c in self.each:
            vector = self.vector_index("tx", c)
            text += (
                f"      if ({vector} / 4u == z) {{\n        let at = {vector} % 4u * 64u + ty;\n"
            )
            for r in self.each:
                for j in range(4):
                    at = f"at + {16 * j + self.side * r}u"
                    text += f"        area[{at}] = {p}{r}_{4 * c + j};\n"
            text += "      }\n"
        fill = f"        let row = col0 + z * {SLICE}u + s;\n"
        for chunk in range(m.chunks):
            fill += f"        let t{chunk} = slab * {SLAB}u + {chunk * CHUNK}u + f * 4u;\n"
            fill += f"        var vector{chunk} = vec4<f32>();\n"
            fill += "        if (row < column_count) {\n"
            for i, part in enumerate(PARTS):
                at = f"t{chunk} + {i}u"
                value = f"{{ vector{chunk}.{part} = {m.at('row', at)}; }}"
                fill += f"          if ({at} < {m.width}) {value}\n"
            fill += f"        }}\n        area[{256 * (1 + chunk)}u + c] = vector{chunk};\n"
        text += self._fill(fill) + "      workgroupBarrier();\n"
        return text + self._added(to, m) + "    }\n"

    def _added(self, to: str, m: TileOperand) -> str:
        """The products of a slice."""
        text = f"      for (var u = 0u; u < {16 * SLICE}u; u = u + 16u) {{\n"
        for r in self.each:
            text += f"        let a{r} = area[u + {self.vector_index('ty', r)}];\n"
        for chunk in range(m.chunks):
            for c in self.each:
                at = f"{256 * (1 + chunk)}u + u + {self.vector_index('tx', c)}"
                text += f"        let b{chunk}{c} = area[{at}];\n"
                for r in self.each:
                    for i, part in enumerate(PARTS):
                        x = f"{to}{chunk}{r}{c}{i}"
                        text += f"        {x} = {x} + a{r}.{part} * b{chunk}{c};\n"
        return text + "      }\n"

    def store(self, name: str, m: TileOperand, start: str, by: str) -> str:
        """The results, times a row's factor or one number, from word `start` of `out` on."""
        text = ""
        for x, r, i, first in self._sums(name, m):
            factor = by if by in ("scale", "1.0") else f"{by}{r}.{PARTS[i]}"
            text += f"  if ({self.row(r, i)} < row_count) {{\n    let v = {x} * {factor};\n"
            line = f"(batch * row_count + {self.row(r, i)}) * {m.width}"
            text += f"    let p = {start} + {line} + {first};\n"
            for k, part in enumerate(PARTS):
                store = f"{{ out[p + {k}u] = bitcast<u32>(v.{part}); }}"
                text += f"    if ({first} + {k}u < {m.width}) {store}\n"
            text += "  }\n"
        return text

    def store_rows(self, names: tuple[str, ...]) -> str:
        """Lines that store a few numbers of each row in order; all threads of a row have them."""
        text = "  if (tx == 0u) {\n"
        for r in self.each:
            for i, part in enumerate(PARTS):
                text += f"    if ({self.row(r, i)} < row_count) {{\n"
                text += f"      let p = (batch * row_count + {self.row(r, i)}) * {len(names)}u;\n"
                for k, name in enumerate(names):
                    text += f"      out[p + {k}u] = bitcast<u32>({name}{r}.{part});\n"
                text += "    }\n"
        return text + "  }\n"
