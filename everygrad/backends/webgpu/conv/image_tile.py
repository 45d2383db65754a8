"""The tiled kernel of convolutions: one product over all images, which are read in place.

Columns are the places of all images, one behind the other, and terms run through the channels of
one tap of the window, then through those of the next: so a thread finds out once where its columns
lie in their images, a slice of 16 terms belongs to one tap, and reading an element is an addition
and two comparisons. For that the weights are brought into the order (taps, terms, rows) before.

    RESULT   rows: results, columns: places, terms: channels, of each tap
    INPUT    rows: channels, columns: pixels, terms: results, of each tap
    WEIGHT   rows: results, columns: channels and taps, terms: the places of all images

The first two store their results image by image. A stride of s by s makes s * s products for INPUT,
of every s-th pixel in both directions (a phase): these have the same taps, each s-th. For a
weight's gradient a thread reads all rows and columns at one place, which it finds once a slice,
four channels of a tap at a time where there are fours: neighbours in a cache are the taps' places;
slices are kept in shared memory in an order in which neighbouring threads write to different banks.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from everygrad.backends.webgpu.driver.shader_modules import InBounds
from everygrad.backends.webgpu.gemm.gemm import (
    COLUMNS,
    FLAT_TILE,
    HEAD,
    LARGE_TILE,
    MATRICES,
    ROWS,
    TALL_TILE,
    TERMS,
    TILE,
    Tile,
    beginning,
    multiplied,
    results_of,
)
from everygrad.backends.webgpu.gemm.operand_reads import OperandReader
from everygrad.backends.webgpu.gemm.result_writes import Epilogue, bindings, stored, stored_one
from everygrad.backends.webgpu.source.render import slot, with_library
from everygrad.compiler.thresholds import edge

ENOUGH = edge(__name__, "ENOUGH", 128, "count")  # tiles from which larger ones keep a GPU busy
# terms that make a part of a gradient of weights, whose terms are split where tiles are few
LONG = edge(__name__, "LONG", 1024, "size")
WIDE_TILE = Tile(64, 128, 1, 2)  # for few rows
_OUTSIDE = "0xc0000000u"  # a row that is in no image, whatever a window adds to it


class ConvForm(Enum):
    """What a convolution's product gives, by the op that asks for it."""

    RESULT = "conv2d"
    INPUT = "conv2d_input"
    WEIGHT = "conv2d_weight"


class Geometry(NamedTuple):
    """The sizes a convolution's kernels read from their uniform, in this order."""

    images: int
    groups: int
    inner: int  # channels of a group
    outer: int  # results of a group
    height: int
    width: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int
    oh: int
    ow: int


# constants in the source: indices are divided by them for each element that is read, and a
# division by a constant is a multiplication
WINDOW = ("kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw")
# the uniform behind the head: of the first array and the second, the offset and four strides; the
# sizes; how many blocks of terms a tap has
FIRST_ARRAY, SECOND_ARRAY, SIZES = HEAD, HEAD + 5, HEAD + 10
_BLOCKS = slot(SIZES + len(Geometry._fields))
PARAMS = SIZES + len(Geometry._fields)


def size_names(window: tuple[int, ...]) -> dict[str, str]:
    """What each size is called in a kernel."""
    known = {name: f"{n}u" for name, n in zip(WINDOW, window, strict=True)}
    return {name: slot(SIZES + i) for i, name in enumerate(Geometry._fields)} | known


class ImageOperands(NamedTuple):
    """How a convolution reads its operands. `vec4`: rows of weights are read four at a time.
    `fours`: a gradient of weights has its results and its channels in fours."""

    form: ConvForm
    reader: OperandReader
    bindings: tuple[int, int]  # of the images, and of the weights or the result's gradient
    window: tuple[int, ...]
    vec4: bool
    fours: bool
    params: int = PARAMS + 1

    @property
    def is_by_phase(self) -> bool:
        """Whether an image's gradient is a product for each phase: not where strides and dilations
        mix."""
        _, _, sh, sw, _, _, dh, dw = self.window
        return self.form is ConvForm.INPUT and 1 in (sh, dh) and 1 in (sw, dw)

    @property
    def words(self) -> tuple[str, ...]:
        found = [""] * (max(self.bindings) + 1)
        found[self.bindings[1]] = self.reader.word(self.vec4)
        found[self.bindings[0]] = self.reader.word(vec4=False)
        return tuple(found)

    def tile(self, sizes: tuple[int, int, int, int]) -> Tile:
        matrices, rows, columns, terms = sizes
        if columns <= TALL_TILE.columns:
            return TALL_TILE
        if rows <= FLAT_TILE.rows:
            return FLAT_TILE
        is_weight = self.form is ConvForm.WEIGHT  # whose rows and columns are few, and terms many
        parts = max(1, terms // LONG) if is_weight else 1
        for tile in (WIDE_TILE,) if is_weight else (LARGE_TILE, WIDE_TILE):
            filled = -(-rows // tile.rows) * tile.rows <= rows + tile.rows // 4
            tiles = -(-rows // tile.rows) * (columns // tile.columns) * matrices
            if filled and tiles and tiles * parts >= ENOUGH:
                return tile
        return TILE

    def kernel(self, tile: Tile, epilogue: Epilogue, vec4_out: bool) -> str:
        return _kernel(self, tile, epilogue, vec4_out)


@lru_cache(maxsize=256)
def _kernel(operands: ImageOperands, tile: Tile, epilogue: Epilogue, vec4_out: bool) -> str:
    writer = _of_weight if operands.form is ConvForm.WEIGHT else _of_places
    parts = writer(operands, tile, epilogue, vec4_out)
    accumulators = [
        f"s{r}{i}{c}" for r in range(tile.down) for i in range(4) for c in range(tile.across)
    ]
    main = (
        beginning(tile, (*accumulators, *parts.registers))
        + parts.state
        + f"  var k0 = {parts.start};\n{parts.read}"
        + f"  for (; k0 < end; ) {{\n{parts.put}    k0 = k0 + {tile.terms}u;\n"
        + f"    workgroupBarrier();\n{parts.read}"
        + parts.multiply
        + f"    workgroupBarrier();\n  }}\n{parts.results}}}\n"
    )
    reader, (image, other) = operands.reader, operands.bindings
    text = f"fn image(p: u32) -> {reader.register} {{\n{reader.scalar(f'a{image}')}"
    if operands.vec4:
        text += f"fn other4(p: u32) -> vec4<{reader.register}> {{\n{reader.vec4(f'a{other}')}"
    else:
        text += f"fn other(p: u32) -> {reader.register} {{\n{reader.scalar(f'a{other}')}"
    head = bindings(operands.words, epilogue, operands.params, vec4_out)
    return InBounds(reader.enable + head + with_library(text + epilogue.text + main))


class _Parts(NamedTuple):
    """The registers of a slice, and lines: what a thread finds out before, how it loads a slice
    from term k0 on into registers (zeros beyond the edges), stores it in shared memory, multiplies
    it; and how results are stored."""

    registers: list[str]
    state: str
    read: str
    put: str
    multiply: str
    results: str
    start: str = "start"  # the first term


def _slots(vectors: int, terms: int) -> tuple[int, str]:
    """How many vectors of a slice a thread loads, and the condition that it loads any."""
    count = terms * vectors
    return -(-count // 256), f"if (l < {count}u) " if count < 256 else ""


# --- places: results, and gradients of images ----------------------------------------------------


class _Places(NamedTuple):
    """How columns lie in images: lines that say so for a thread's four columns (`columns`), and
    which tap a term is of (`taps`); whether that is in the window; the step from a column's address
    to what a tap reads; where the weights of a tap begin; whether tap and column meet."""

    columns: str
    taps: str
    inside: str
    step: str
    weights: str
    meet: str  # of column {i}; "": it is worked out for each


def _of_places(operands: ImageOperands, tile: Tile, epilogue: Epilogue, vec4_out: bool) -> _Parts:
    s = size_names(operands.window)
    of = [slot(FIRST_ARRAY + i) for i in range(5)]
    start, state = "start", ""
    if operands.form is ConvForm.RESULT:
        lie = _result_places(operands, s, of)
        state = f"  let u = b;\n  let places = {s['oh']} * {s['ow']};\n"
    elif operands.is_by_phase:
        lie = _phase_places(operands, s, of)
        start = f"select(start, end, i0 >= {s['kh']} || j0 >= {s['kw']})"  # no tap: zeros
        state = _phase(s)
    else:
        lie = _pixel_places(s, of)
        state = f"  let u = b;\n  let places = {s['height']} * {s['width']};\n"
    channels = s["inner"] if operands.form is ConvForm.RESULT else s["outer"]  # of a tap: its terms
    x_registers, x_read, x_put = _weights(operands, tile, s, channels, lie)
    y_registers, y_read, y_put = _images(operands, tile, channels, lie)
    for i in range(4):
        state += (
            f"  let n_{i} = n0 + (l % {tile.columns // 4}u) * 4u + {i}u;\n"
            f"  let at_{i} = n_{i} / places;\n  let p_{i} = n_{i} - at_{i} * places;\n"
            f"  let out_{i} = n_{i} >= {COLUMNS};\n" + lie.columns.format(i=i)
        )
    return _Parts(
        [*x_registers, *y_registers],
        state,
        x_read + y_read,
        x_put + y_put,
        multiplied(tile),
        _placed_results(operands, tile, epilogue, vec4_out, s),
        start,
    )


def _result_places(operands: ImageOperands, s: dict[str, str], of: list[str]) -> _Places:
    """The result's places: a tap reads so many rows and columns further on."""
    return _Places(
        f"  let y_{{i}} = (p_{{i}} / {s['ow']}) * {s['sh']} - {s['ph']};\n"
        f"  let column_{{i}} = (p_{{i}} % {s['ow']}) * {s['sw']} - {s['pw']};\n"
        f"  let row_{{i}} = select(y_{{i}}, {_OUTSIDE}, out_{{i}});\n"
        f"  let from_{{i}} = {of[0]} + at_{{i}} * {of[1]} + u * {s['inner']} * {of[2]}"
        f" + y_{{i}} * {of[3]} + column_{{i}} * {of[4]};\n",
        f"      let i = tap / {s['kw']};\n      let j = tap % {s['kw']};\n",
        "",
        f"        let step = c * {of[2]} + i * {s['dh']} * {of[3]} + j * {s['dw']} * {of[4]};\n",
        f"(tap * {s['inner']} + c) * {s['groups']} * {s['outer']} + u * {s['outer']}",
        f"row_{{i}} + i * {s['dh']} < {s['height']} && column_{{i}} + j * {s['dw']} < {s['width']}",
    )


def _weights_of_tap(s: dict[str, str]) -> str:
    every = f"{s['groups']} * {s['outer']}"
    return f"((i * {s['kw']} + j) * {every} + u * {s['outer']} + c) * {s['inner']}"


def _pixel_places(s: dict[str, str], of: list[str]) -> _Places:
    """An image's pixels, where strides and dilations mix: of each tap it is worked out which place
    of the result it comes from, if any."""
    return _Places(
        f"  let row_{{i}} = select(p_{{i}} / {s['width']} + {s['ph']}, {_OUTSIDE}, out_{{i}});\n"
        f"  let column_{{i}} = p_{{i}} % {s['width']} + {s['pw']};\n"
        f"  let from_{{i}} = {of[0]} + at_{{i}} * {of[1]} + u * {s['outer']} * {of[2]};\n",
        f"      let i = tap / {s['kw']};\n      let j = tap % {s['kw']};\n",
        "",
        "",
        _weights_of_tap(s),
        "",
    )


def _phase(s: dict[str, str]) -> str:
    """Which phase a product is of: its first pixel (ay, ax) and first tap (i0, j0), the place of
    the result that the two meet in, and how many of its pixels an image has."""
    lines = f"  let u = b % {s['groups']};\n  let phase = b / {s['groups']};\n"
    lines += f"  let ay = phase / {s['sw']};\n  let ax = phase % {s['sw']};\n"
    for first, of, pad, stride, place in (
        ("i0", "ay", "ph", "sh", "y0"),
        ("j0", "ax", "pw", "sw", "x0"),
    ):
        lines += f"  let {first} = ({of} + {s[pad]}) % {s[stride]};\n"
        lines += f"  let {place} = ({of} + {s[pad]} - {first}) / {s[stride]};\n"
    lines += f"  let wide = ({s['width']} + {s['sw']} - 1u) / {s['sw']};\n"
    return lines + f"  let places = ({s['height']} + {s['sh']} - 1u) / {s['sh']} * wide;\n"


def _phase_places(operands: ImageOperands, s: dict[str, str], of: list[str]) -> _Places:
    """The pixels of a phase: each further tap comes from a place of the result that is so many rows
    and columns before."""
    _, kw, sh, sw, _, _, dh, dw = operands.window
    back = [f"{d if stride == 1 else 1}u" for stride, d in ((sh, dh), (sw, dw))]
    return _Places(
        f"  let row_{{i}} = select(p_{{i}} / wide + y0, {_OUTSIDE}, out_{{i}});\n"
        f"  let column_{{i}} = p_{{i}} % wide + x0;\n"
        f"  let from_{{i}} = {of[0]} + at_{{i}} * {of[1]} + u * {s['outer']} * {of[2]}"
        f" + row_{{i}} * {of[3]} + column_{{i}} * {of[4]};\n",
        f"      let ti = tap / {-(-kw // sw)}u;\n      let tj = tap % {-(-kw // sw)}u;\n"
        f"      let i = i0 + ti * {s['sh']};\n      let j = j0 + tj * {s['sw']};\n",
        f" && i < {s['kh']} && j < {s['kw']}",
        f"        let up = ti * {back[0]};\n        let before = tj * {back[1]};\n"
        f"        let step = c * {of[2]} - up * {of[3]} - before * {of[4]};\n",
        _weights_of_tap(s),
        f"row_{{i}} - up < {s['oh']} && column_{{i}} - before < {s['ow']}",
    )


def _term(block: int, f: str, taps: str) -> str:
    """The tap (i, j) and the channel c of a term; a slice's blocks of 16 terms have one tap."""
    return (
        f"      let t = k0 / {TERMS}u + {block}u;\n      let tap = t / {_BLOCKS};\n"
        f"      let c = (t - tap * {_BLOCKS}) * {TERMS}u + {f};\n{taps}"
    )


def _images(
    operands: ImageOperands, tile: Tile, channels: str, lie: _Places
) -> tuple[list[str], str, str]:
    """The slice of the images."""
    s, of = size_names(operands.window), [slot(FIRST_ARRAY + i) for i in range(5)]
    vectors = tile.columns // 4
    slots, inside = _slots(vectors, tile.terms)
    each = 256 // vectors  # terms between two of a thread's vectors
    registers, read, put = [], "", ""
    for q in range(slots):
        name = f"ys_{q}"
        block, first = divmod(q * each, TERMS)
        lines = _term(block, f"l / {vectors}u + {first}u", lie.taps)
        lines += f"      {name} = vec4<f32>();\n"
        lines += f"      if (c < {channels} && k0 + {block * TERMS}u < end{lie.inside}) {{\n"
        lines += lie.step
        for i, part in enumerate("xyzw"):
            if lie.meet:
                lines += (
                    f"        if ({lie.meet.format(i=i)})"
                    f" {{ {name}.{part} = image(from_{i} + step); }}\n"
                )
            else:
                lines += (
                    f"        let h{i} = row_{i} - i * {s['dh']};\n"
                    f"        let v{i} = column_{i} - j * {s['dw']};\n"
                    f"        let y{i} = h{i} / {s['sh']};\n        let z{i} = v{i} / {s['sw']};\n"
                    f"        if (h{i} < 0x80000000u && v{i} < 0x80000000u"
                    f" && y{i} * {s['sh']} == h{i} && z{i} * {s['sw']} == v{i}"
                    f" && y{i} < {s['oh']} && z{i} < {s['ow']}) {{ {name}.{part} = image("
                    f"from_{i} + c * {of[2]} + y{i} * {of[3]} + z{i} * {of[4]}); }}\n"
                )
        registers.append(name)
        read += f"    {inside}{{\n{lines}      }}\n    }}\n"
        at = f"(l / {vectors}u + {q * each}u) * {vectors}u + l % {vectors}u"
        put += f"    {inside}{{ ys[{at}] = {name}; }}\n"
    return registers, read, put


def _weights(
    operands: ImageOperands, tile: Tile, s: dict[str, str], channels: str, lie: _Places
) -> tuple[list[str], str, str]:
    """The slice of the weights, which lie in the order (taps, terms, rows): for the result the rows
    of all groups are one behind the other, for an image's gradient the terms are."""
    vectors = tile.rows // 4
    slots, inside = _slots(vectors, tile.terms)
    each = 256 // vectors
    registers, read, put = [], "", ""
    for q in range(slots):
        name = f"xs_{q}"
        block, first = divmod(q * each, TERMS)
        lines = _term(block, f"l / {vectors}u + {first}u", lie.taps)
        lines += f"      let m = m0 + (l % {vectors}u) * 4u;\n      {name} = vec4<f32>();\n"
        lines += f"      if (c < {channels} && k0 + {block * TERMS}u < end{lie.inside}) {{\n"
        lines += f"        let p = {lie.weights} + m;\n"
        if operands.vec4:
            lines += f"        if (m < {ROWS}) {{ {name} = other4(p); }}\n"
        else:
            for i, part in enumerate("xyzw"):
                lines += f"        if (m + {i}u < {ROWS}) {{ {name}.{part} = other(p + {i}u); }}\n"
        registers.append(name)
        read += f"    {inside}{{\n{lines}      }}\n    }}\n"
        at = f"(l / {vectors}u + {q * each}u) * {vectors}u + l % {vectors}u"
        put += f"    {inside}{{ xs[{at}] = {name}; }}\n"
    return registers, read, put


def _placed_results(
    operands: ImageOperands, tile: Tile, epilogue: Epilogue, vec4_out: bool, s: dict[str, str]
) -> str:
    """Stores image by image; a part's sums lie behind those of the part before."""
    down, across = tile.threads
    whole, place, stays = "places", "{n} % places", f"{{n}} < {COLUMNS}"
    lines = f"  let part = z / {MATRICES};\n"
    if operands.is_by_phase and operands.window[2:4] != (1, 1):
        lines += f"  let pixels = {s['height']} * {s['width']};\n"
        row = f"(({{n}} % places) / wide * {s['sh']} + ay)"
        column = f"({{n}} % wide * {s['sw']} + ax)"  # an image has whole rows of a phase
        whole, place = "pixels", f"{row} * {s['width']} + {column}"
        stays += f" && {row} < {s['height']} && {column} < {s['width']}"
    for c in range(tile.across):
        for i in range(1 if vec4_out else 4):
            n, to = f"n{c}_{i}", f"to{c}_{i}"
            lines += (
                f"  let {n} = n0 + tx * 4u + {4 * across * c + i}u;\n"
                f"  let {to} = ((part * {s['images']} + {n} / places) * {s['groups']} + u) * {ROWS}"
                f" * {whole} + {place.format(n=n)};\n"
                f"  let in{c}_{i} = {stays.format(n=n)};\n"
            )
    for r in range(tile.down):
        for i in range(4):
            m = f"m0 + ty * 4u + {4 * down * r + i}u"
            lines += f"  if ({m} < {ROWS}) {{\n    let row = ({m}) * {whole};\n"
            for c in range(tile.across):
                value = f"s{r}{i}{c}"
                if vec4_out:
                    lines += f"    if (in{c}_0) {{\n"
                    lines += stored(epilogue, value, f"to{c}_0 + row", "", vec4=True) + "    }\n"
                    continue
                for k, part in enumerate("xyzw"):
                    lines += f"    if (in{c}_{k}) {{\n"
                    lines += stored_one(epilogue, f"{value}.{part}", f"to{c}_{k} + row")
                    lines += "    }\n"
            lines += "  }\n"
    return lines


# --- gradients of weights ------------------------------------------------------------------------


def _of_weight(operands: ImageOperands, tile: Tile, epilogue: Epilogue, vec4_out: bool) -> _Parts:
    s, terms = size_names(operands.window), tile.terms
    y = [slot(SECOND_ARRAY + i) for i in range(5)]
    x = [slot(FIRST_ARRAY + i) for i in range(5)]
    x_registers, x_read, x_put = _results_of_terms(operands, tile, s, y)
    y_registers, y_state, y_read, y_put = _channels_of_terms(operands, tile, s, x)
    read = (
        f"    {{\n      let k = k0 + l % {terms}u;\n      let at = k / places;\n"
        f"      let p = k - at * places;\n      let py = p / {s['ow']};\n"
        f"      let px = p - py * {s['ow']};\n"
        f"      let g = {y[0]} + at * {y[1]} + py * {y[3]} + px * {y[4]};\n"
        f"      let f = {x[0]} + at * {x[1]};\n{x_read}{y_read}    }}\n"
    )
    return _Parts(
        [*x_registers, *y_registers],
        f"  let places = {s['oh']} * {s['ow']};\n" + y_state,
        read,
        f"    {{\n    let f = l % {terms}u;\n{x_put}{y_put}    }}\n",
        multiplied(tile, _swizzled),
        _taps_in_order(operands, tile, epilogue, vec4_out, s),
    )


def _results_of_terms(
    operands: ImageOperands, tile: Tile, s: dict[str, str], of: list[str]
) -> tuple[list[str], str, str]:
    """The slice of the result's gradients: four rows of a thread at its place."""
    slots, inside = _slots(tile.rows // 4, tile.terms)
    registers, read, put = [], "", ""
    for q in range(slots):
        name = f"xs_{q}"
        registers.append(name)
        read += f"      {name} = vec4<f32>();\n      {inside}{{\n"
        read += f"        let t = m0 + ((l + {256 * q}u) / {tile.terms}u) * 4u;\n"
        read += f"        let h = g + (b * {s['outer']} + t) * {of[2]};\n"
        places = [f"other(h + {i}u * {of[2]})" for i in range(4)]
        if operands.fours:
            four = ", ".join(places)
            read += f"        if (k < end && t < {ROWS}) {{ {name} = vec4<f32>({four}); }}\n"
        else:
            for i, part in enumerate("xyzw"):
                read += f"        if (k < end && t + {i}u < {ROWS})"
                read += f" {{ {name}.{part} = {places[i]}; }}\n"
        read += "      }\n"
        at = _swizzled("f", f"(l + {256 * q}u) / {tile.terms}u", tile.rows // 4)
        put += f"    {inside}{{ xs[{at}] = {name}; }}\n"
    return registers, read, put


def _channels_of_terms(
    operands: ImageOperands, tile: Tile, s: dict[str, str], of: list[str]
) -> tuple[list[str], str, str, str]:
    """The slice of the images: what four columns of a thread meet at its place. Columns run
    through the taps of a channel, or of four channels, which then meet one place each time."""
    slots, inside = _slots(tile.columns // 4, tile.terms)
    taps = f"({s['kh']} * {s['kw']})"
    registers, state, read, put = [], "", "", ""
    for q in range(slots):
        name = f"ys_{q}"
        registers.append(name)
        read += f"      {name} = vec4<f32>();\n      {inside}{{\n"
        for i in range(1 if operands.fours else 4):
            n = f"{q}_{i}"
            if operands.fours:
                tap, channel = f"(n_{n} / 4u) % {taps}", f"n_{n} / (4u * {taps}) * 4u"
            else:
                tap, channel = f"n_{n} % {taps}", f"n_{n} / {taps}"
            state += (
                f"  let n_{n} = n0 + ((l + {256 * q}u) / {tile.terms}u) * 4u + {i}u;\n"
                f"  let tap_{n} = {tap};\n"
                f"  let row_{n} = select({_OUTSIDE}, (tap_{n} / {s['kw']}) * {s['dh']} - {s['ph']},"
                f" n_{n} < {COLUMNS});\n"
                f"  let column_{n} = (tap_{n} % {s['kw']}) * {s['dw']} - {s['pw']};\n"
                f"  let from_{n} = (b * {s['inner']} + {channel}) * {of[2]};\n"
            )
            read += (
                f"        let y{i} = py * {s['sh']} + row_{n};\n"
                f"        let x{i} = px * {s['sw']} + column_{n};\n"
                f"        if (k < end && y{i} < {s['height']} && x{i} < {s['width']}) {{\n"
                f"          let h = f + from_{n} + y{i} * {of[3]} + x{i} * {of[4]};\n"
            )
            if operands.fours:
                four = ", ".join(f"image(h + {c}u * {of[2]})" for c in range(4))
                read += f"          {name} = vec4<f32>({four});\n        }}\n"
            else:
                read += f"          {name}.{'xyzw'[i]} = image(h);\n        }}\n"
        read += "      }\n"
        at = _swizzled("f", f"(l + {256 * q}u) / {tile.terms}u", tile.columns // 4)
        put += f"    {inside}{{ ys[{at}] = {name}; }}\n"
    return registers, state, read, put


def _taps_in_order(
    operands: ImageOperands, tile: Tile, epilogue: Epilogue, vec4_out: bool, s: dict[str, str]
) -> str:
    """Stores the taps of each channel one behind the other, of which columns hold four by four."""
    if not operands.fours or operands.window[:2] == (1, 1):
        return results_of(tile, epilogue, vec4_out)
    down, across = tile.threads
    lines = f"  let taps = {s['kh']} * {s['kw']};\n"
    for c in range(tile.across):
        lines += f"  let column{c} = n0 + tx * 4u + {4 * across * c}u;\n"
        lines += f"  let to{c} = column{c} / (4u * taps) * 4u * taps + (column{c} / 4u) % taps;\n"
    for r in range(tile.down):
        for i in range(4):
            m = f"m0 + ty * 4u + {4 * down * r + i}u"
            lines += f"  if ({m} < {ROWS}) {{\n    let row = (z * {ROWS} + {m}) * {COLUMNS};\n"
            for c in range(tile.across):
                lines += f"    if (column{c} < {COLUMNS}) {{\n"
                for k, part in enumerate("xyzw"):
                    at = f"row + to{c} + {k}u * taps"
                    lines += "    {\n" + stored_one(epilogue, f"s{r}{i}{c}.{part}", at) + "    }\n"
                lines += "    }\n"
            lines += "  }\n"
    return lines


def _swizzled(term: str, vector: str, vectors: int) -> str:
    """Where a vector of a term lies in shared memory: eight neighbouring terms of one vector, which
    as many threads write at once, lie in different banks."""
    return f"({term}) * {vectors}u + (({vector}) ^ (({term}) & 7u))"
