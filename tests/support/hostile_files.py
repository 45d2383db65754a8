"""Files that lie, each by its name: bytes, and what the refusal must say."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from typing import Any

HUGE = 2**40  # bytes that a lie asks for; nobody may take them


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: Any, *offsets: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def ours(about: Any, crc: str | None = None, **tensors: Any) -> bytes:
    """A file that everygrad wrote as far as its header says."""
    metadata = {"everygrad": about if isinstance(about, str) else json.dumps(about)}
    said = json.dumps([metadata, tensors], separators=(",", ":"), sort_keys=True)
    metadata["everygrad.crc32"] = f"{zlib.crc32(said.encode()):08x}" if crc is None else crc
    return safetensors({"__metadata__": metadata, **tensors}, b"\x00" * 4 * len(tensors))


def about(tree: Any, **more: Any) -> dict[str, Any]:
    return {"version": 1, "chunk": 1 << 24, "crc32": {}, "note": {}, "tree": tree} | more


_ONE = {"a": entry([1], 0, 4)}
SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "0 bytes are too few"),
    "seven bytes": (b"\x00" * 7, "7 bytes are too few"),
    "no header": (struct.pack("<Q", 0), "is not JSON"),
    "a header of 2**63 bytes": (safetensors(_ONE, b"1234", 2**63), "says that its header has 9,2"),
    "a header of 2**64 - 1": (safetensors(_ONE, b"1234", 2**64 - 1), "says that its header has"),
    "a header past the end": (safetensors(_ONE, b"1234", 1000), "header has 1,000 bytes, and has"),
    "no JSON": (safetensors(b"{'a': 1}"), "is not JSON"),
    "half of JSON": (safetensors(b'{"a": {'), "is not JSON"),
    "no UTF-8": (safetensors(b'{"\xff": 1}'), "is not JSON"),
    "no numbers": (safetensors(b'{"a": NaN}'), "NaN is no number"),
    "a list": (safetensors([1]), "must be a JSON object, got list"),
    "deep lists": (safetensors(b"[" * 200_000), "nested too deeply"),
    "deep objects": (safetensors(b'{"a":' * 200_000), "nested too deeply"),
    "a name twice": (
        safetensors(b'{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":1}', b"1"),
        "the key 'a' is there twice",
    ),
    "a dtype twice": (
        safetensors(b'{"a":{"dtype":"U8","dtype":"F64","shape":[],"data_offsets":[0,1]}}', b"1"),
        "the key 'dtype' is there twice",
    ),
    "overlapping": (
        safetensors({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"1" * 12), "'b' overlaps 'a'"
    ),
    "the same twice": (
        safetensors({"a": entry([2], 0, 8), "b": entry([2], 0, 8)}, b"1" * 8), "'b' overlaps 'a'"
    ),
    "a hole": (
        safetensors({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"1" * 12), "leaves a hole"
    ),
    "cut off": (safetensors({"a": entry([2], 0, 8)}, b"1" * 7), "end at byte"),
    "too long": (safetensors({"a": entry([2], 0, 8)}, b"1" * 9), "end at byte"),
    "a terabyte": (safetensors({"a": entry([HUGE], 0, 4 * HUGE)}, b"1234"), "end at byte"),
    "negative offsets": (safetensors({"a": entry([1], -4, 0)}), "not a begin and an end"),
    "offsets reversed": (safetensors({"a": entry([1], 4, 0)}, b"1234"), "not a begin and an end"),
    "one offset": (safetensors({"a": entry([1], 4)}, b"1234"), "not a begin and an end"),
    "offsets above 2**63": (safetensors({"a": entry([1], 2**64, 2**64 + 4)}), "not a begin and"),
    "a negative shape": (safetensors({"a": entry([-1, -1], 0, 4)}, b"1234"), "is no shape"),
    "a half shape": (safetensors({"a": entry([1.0], 0, 4)}, b"1234"), "is no shape"),
    "a true shape": (safetensors({"a": entry([True], 0, 4)}, b"1234"), "is no shape"),
    "a text shape": (safetensors({"a": entry("1", 0, 4)}, b"1234"), "is no shape"),
    "100 axes": (safetensors({"a": entry([1] * 100, 0, 4)}, b"1234"), "is no shape"),
    "a product that overflows": (
        safetensors({"a": entry([2**62, 2**62], 0, 4)}, b"1234"), "no array can have the shape"
    ),
    "empty and endless": (
        safetensors({"a": entry([0, 2**62, 2**62], 0, 0)}), "no array can have the shape"
    ),
    "another size": (safetensors({"a": entry([3], 0, 4)}, b"1234"), r"has 12 bytes, data_offsets"),
    "an unknown dtype": (safetensors({"a": entry([1], 0, 4, dtype="F31")}, b"1234"), ": 'F31'"),
    "several unknown dtypes": (
        safetensors({c: entry([1], i, i + 1, dtype=f"Q{i}") for i, c in enumerate("ab")}, b"12"),
        "'Q0' .of 'a'.; 'Q1' .of 'b'.",
    ),
    "a dtype of lists": (safetensors({"a": entry([1], 0, 4, dtype=[1])}, b"1234"), r": \[1\]"),
    "no dtype": (safetensors({"a": {"shape": [], "data_offsets": [0, 4]}}, b"1234"), "must have a"),
    "more fields": (safetensors({"a": {**_ONE["a"], "x": 1}}, b"1234"), "and nothing else"),
    "a number for an entry": (safetensors({"a": 5}), "must have a dtype"),
    "metadata of numbers": (safetensors({"__metadata__": {"a": 1}}), "must map names to text"),
    "metadata of lists": (safetensors({"__metadata__": []}), "must map names to text"),
    "booleans of 2": (
        safetensors({"a": entry([1], 0, 1, dtype="BOOL")}, b"\x02"), "neither 0 nor 1"
    ),
    "a wrong checksum": (ours(about(None), "00000000"), "damaged: the header's checksum is"),
    "no checksum": (ours(about(None), ""), "damaged: the header's checksum is"),
    "a later version": (ours({"version": 2}), "written by a later everygrad"),
    "an object that is none": (ours("[]"), "must be a JSON object"),
    "no checksums of tensors": (ours(about(None), a=entry([1], 0, 4)), "checksums of 'a' are mis"),
    "wrong data": (
        ours(about(None, crc32={"a": "00000000"}), a=entry([1], 0, 4)), "damaged: the checksum of"
    ),
    "checksums of letters": (
        ours(about(None, crc32={"a": "zzzzzzzz"}), a=entry([1], 0, 4)), "checksums cannot be read"
    ),
    "chunks of nothing": (ours(about(None, chunk=0)), "checksums cannot be read"),
    "a tensor that is not there": (ours(about({"tensor": "x"})), "there is no tensor 'x'"),
    "a tag that is not there": (ours(about({"call": "os.system"})), "'call': 'os.system'"),
    "two tags": (ours(about({"tensor": "x", "array": "x"})), "has an object with the keys"),
    "a key twice": (ours(about({"items": [[1, 2], [1, 3]]})), "has the key 1, twice"),
    "a list as a key": (ours(about({"items": [[[1], 2]]})), "twice or not allowed"),
    "keys that collide": (ours(about({"items": [[2**61 - 1, 2]]})), "twice or not allowed"),
    "an item of three": (ours(about({"items": [[1, 2, 3]]})), "an item that is no pair"),
    "a tree too deep": (ours(about(json.loads("[" * 300 + "]" * 300))), "nested too deeply"),
    "bytes that are none": (ours(about({"bytes": "???"})), "'bytes': '...'"),
    "complex that is none": (ours(about(None, complex128=["a"])), "is said to be complex128"),
}  # fmt: skip


INDEX: dict[str, tuple[bytes, str]] = {
    "above": (b'{"weight_map": {"a": "../x.safetensors"}}', "files of an index lie beside it"),
    "absolute": (b'{"weight_map": {"a": "/etc/passwd"}}', "files of an index lie beside it"),
    "backslashes": (rb'{"weight_map": {"a": "..\\x"}}', "files of an index lie beside it"),
    "a drive": (b'{"weight_map": {"a": "C:x"}}', "files of an index lie beside it"),
    "hidden": (b'{"weight_map": {"a": ".x"}}', "files of an index lie beside it"),
    "empty": (b'{"weight_map": {"a": ""}}', "files of an index lie beside it"),
    "NUL": (rb'{"weight_map": {"a": "x\u0000"}}', "files of an index lie beside it"),
    "a number": (b'{"weight_map": {"a": 1}}', "files of an index lie beside it"),
    "no map": (b'{"weights": {}}', "it has no weight_map"),
    "a map of lists": (b'{"weight_map": []}', "it has no weight_map"),
    "deep": (b'{"weight_map":' * 100_000, "nested too deeply"),
    "twice": (b'{"weight_map": {"a": "x", "a": "y"}}', "the key 'a' is there twice"),
    "no such file": (b'{"weight_map": {"a": "none.safetensors"}}', "there is no file"),
}  # fmt: skip


# --- pickles, assembled by hand ------------------------------------------------------------------


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def whole(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def storage(key: str, count: int, kind: str = "FloatStorage") -> bytes:
    parts = (text("storage"), named("torch", kind), text(key), text("cpu"), whole(count))
    return b"(" + b"".join(parts) + b"tQ"


def sizes(values: Any) -> bytes:
    return b"(" + b"".join(whole(n) for n in values) + b"t"


def tensor(shape: Any, strides: Any, offset: int = 0, count: int = 4, key: str = "0") -> bytes:
    function = named("torch._utils", "_rebuild_tensor_v2")
    hooks = named("collections", "OrderedDict") + b")R"
    parts = (storage(key, count), whole(offset), sizes(shape), sizes(strides), b"\x89", hooks)
    return function + b"(" + b"".join(parts) + b"tR"


def archive(pickle: bytes, data: bytes = b"\x00" * 16, compress: int = 0, **names: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compress) as made:
        made.writestr("x/data.pkl", b"\x80\x02" + pickle + b".")
        made.writestr("x/data/0", data)
        for name, content in names.items():
            made.writestr(name, content)
    return out.getvalue()


def _laughs() -> bytes:
    """Forty lines that stand for 2**40 lists."""
    lines = b"(]q\x00"
    for i in range(40):
        lines += b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1])
    return lines + b"t"


def _patched(data: bytes, old: bytes, new: bytes, count: int = 1) -> bytes:
    assert old in data
    assert len(old) == len(new)
    return data.replace(old, new, count)


def _overlapping() -> bytes:
    """The directory gives the storage more bytes than there are before what follows it."""
    data = archive(b"}", b"A" * 16, **{"x/version": b"3"})
    at = data.rindex(b"x/data/0") - 46
    assert data[at : at + 4] == b"PK\x01\x02"
    return data[: at + 20] + struct.pack("<II", 4000, 4000) + data[at + 28 :]


_CALL = named("posix", "system") + text("echo pwned > PWNED") + b"\x85R"
PICKLES: dict[str, tuple[bytes, str]] = {
    "os.system": (archive(_CALL), r"asks for posix\.system, which is not data"),
    "os.system by its stack": (
        archive(text("os") + text("system") + b"\x93" + text("true") + b"\x85R"), r"os\.system"
    ),
    "eval": (archive(named("builtins", "eval") + text("1") + b"\x85R"), r"builtins\.eval"),
    "__import__": (archive(named("__builtin__", "__import__")), "__import__, which is not data"),
    "a torch function": (archive(named("torch", "load")), r"torch\.load, which is not data"),
    "INST": (archive(b"(" + text("x") + b"iposix\nsystem\n"), "opcode INST"),
    "OBJ": (archive(b"(o"), "opcode OBJ"),
    "NEWOBJ": (archive(named("collections", "OrderedDict") + b")\x81"), "opcode NEWOBJ"),
    "an extension": (archive(b"\x82\x01"), "opcode EXT1"),
    "an opcode that is none": (archive(b"\xff"), "opcode 0xff"),
    "a call of text": (archive(text("x") + b")R"), "calls what is no function"),
    "a call of a dtype": (archive(named("torch", "float32") + b")R"), "calls what is no function"),
    "attributes of a list": (archive(b"]}b"), "adds to a list"),
    "attributes that are text": (archive(b"}" + text("x") + b"b"), "gives attributes to what"),
    "no end": (archive(b"}")[:-4], "not a whole zip"),
    "cut off": (archive(text("abc")[:-1]), "is cut off|is damaged"),
    "text without end": (archive(b"X\xff\xff\xff\xff"), "is cut off"),
    "text of 2**63": (archive(b"\x8d" + struct.pack("<Q", 2**63)), "is cut off"),
    "a number of 4 GB": (archive(b"\x8b\xff\xff\xff\x7f"), "a whole number of 2147483647 bytes"),
    "a negative length": (archive(b"\x8b\xff\xff\xff\xff"), "a whole number of -1 bytes"),
    "a name without end": (archive(b"c" + b"x" * 1000), "a name without an end"),
    "an empty stack": (archive(b"R"), "is damaged"),
    "a mark as a value": (archive(b"(\x85"), "takes a mark for a value"),
    "a mark remembered": (archive(b"(q\x00"), "takes a mark for a value"),
    "no memory of that": (archive(b"h\x07"), "is damaged"),
    "two objects": (archive(b"}}"), "does not end with one object"),
    "a key without a value": (archive(b"}(" + text("a") + b"u"), "has a key without a value"),
    "a list as a key": (archive(b"}]" + text("a") + b"s"), "has a list as a key"),
    "a tuple of lists as a key": (archive(b"}]\x85" + text("a") + b"s"), "has a tuple as a key"),
    "keys that collide": (archive(b"}" + whole(2**61) + text("a") + b"s"), "has a int as a key"),
    "a list in itself": (archive(b"]q\x00h\x00a"), "hold themselves"),
    "a tuple in itself": (archive(b"]q\x00h\x00\x85a"), "hold themselves"),
    "deep tuples": (archive(b")" + b"\x85" * 100_000), "too deep in each other"),
    "a billion laughs": (archive(_laughs()), "more than is read"),
    "a later protocol": (archive(b"\x80\x09}"), "of protocol 9"),
    "too many items": (archive(tensor([5], [1])), "from 0 on, of 4 items"),
    "strides too long": (archive(tensor([2], [4])), "from 0 on, of 4 items"),
    "an offset too large": (archive(tensor([1], [1], 4)), "from 4 on, of 4 items"),
    "a negative offset": (archive(tensor([1], [1], -1)), "what it does not take"),
    "negative strides": (archive(tensor([2], [-1], 3)), "what it does not take"),
    "a negative shape": (archive(tensor([-1], [1])), "what it does not take"),
    "sizes that overflow": (archive(tensor([2**61, 2**61], [0, 0])), "no array can have the shape"),
    "too few strides": (archive(tensor([2, 2], [1])), "what it does not take"),
    "65 axes": (archive(tensor([1] * 65, [1] * 65)), "what it does not take"),
    "another storage": (archive(tensor([1], [1], key="7")), "the storage '7' is missing"),
    "a storage above": (archive(tensor([1], [1], key="../0")), "storage '../0' is missing"),
    "a storage of a terabyte": (
        archive(tensor([HUGE], [1], count=HUGE)), "has 16 bytes, not 4,398,046,511,104"
    ),
    "a storage that is text": (archive(text("x") + b"Q"), "has a storage that cannot be read"),
    "a storage of two sizes": (
        archive(b"(" + tensor([1], [1]) + tensor([1], [1], count=2) + b"t"), "of two sizes"
    ),
    "a parameter of text": (
        archive(named("torch._utils", "_rebuild_parameter") + text("x") + b"\x89N\x87R"),
        "a parameter is made of a tensor",
    ),
    "a bomb": (archive(b"}", b"\x00" * 10_000_000, zipfile.ZIP_DEFLATED), "is compressed"),
    "a name above": (archive(b"}", **{"x/../../etc/passwd": b"x"}), "outside of the archive"),
    "an absolute name": (archive(b"}", **{"/etc/passwd": b"x"}), "outside of the archive"),
    "no pickle": (
        _patched(archive(b"}"), b"data.pkl", b"data.pki", 2), "0 entries data.pkl"
    ),
    "two names": (_patched(archive(b"}"), b"x/data/0", b"x/data/1"), "another name where its"),
    "overlapping": (_overlapping(), "overlaps what follows it"),
    "big-endian": (archive(b"}", **{"x/byteorder": b"big"}), "big-endian"),
    "damaged": (_patched(archive(b"]"), b"\x80\x02].", b"\x80\x02}."), "damaged: the checksum"),
    "a stream of os.system": (
        b"\x80\x02" + whole(0x1950A86A20F9469CFC6C) + b".\x80\x02M\xe9\x03.\x80\x02" + _CALL + b".",
        r"asks for posix\.system",
    ),
    "another stream": (b"\x80\x02\x8a\x0a" + b"1" * 10 + b".N.N.", "none of torch.save"),
    "a stream cut off": (b"\x80\x02\x8a\x0a", "is cut off"),
}  # fmt: skip
