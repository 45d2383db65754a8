"""Checkpoints of what is spread over ranks, which other numbers of ranks can load.

A folder has one safetensors file for each rank that has something to write, and a manifest, written
last, that says of every tensor its whole shape and which boxes of it lie in which file. Elements
that several ranks have are written by the first of them. A rank that loads reads the parts of the
boxes that it needs. The files of one checkpoint have a word of their own in their names, so that
the checkpoint before stays whole until the new manifest is on the disk.
"""

from __future__ import annotations

import json
import re
import secrets
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.core.nearest import differences
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.distributed.collectives import all_gather, all_reduce
from everygrad.distributed.mesh import Mesh
from everygrad.distributed.parallel.pipelines import Pipeline
from everygrad.distributed.parallel.shard_parameter import (
    Box,
    ShardParameter,
    box_shape,
    box_size,
    whole_box,
)
from everygrad.errors import ArgumentError, EverygradError, FileError, MissingFileError, ShapeError
from everygrad.io import safetensors_format as fmt
from everygrad.io.files import as_path, reading, replace
from everygrad.io.snapshot import Snapshot, write
from everygrad.io.source import Source
from everygrad.io.unpacking import read_arrays
from everygrad.nn.module import Module
from everygrad.ops.python.creation import tensor, zeros
from everygrad.optim.optimizer import Optimizer

MANIFEST = "manifest.json"
_FILE = re.compile(r"[0-9a-f]{16}-rank\d{5}\.safetensors")
_MODEL, _BUFFER, _STATE = "model/", "buffer/", "state/"


class Piece(NamedTuple):
    """What this rank has of a tensor: boxes of the whole, one behind the other."""

    value: Tensor
    whole: Shape
    boxes: tuple[Box, ...]
    writes: bool  # no rank before this one has the same elements
    like: bool = True  # it lies as a parameter does


# --- what there is -------------------------------------------------------------------------------


def _is_first(mesh: Mesh, axes: Iterable[str]) -> bool:
    """Whether no rank before this one has the same elements of what is sharded over `axes`."""
    return all(mesh.coordinate(name) == 0 for name in mesh.axes if name not in axes)


def _piece(t: Tensor, like: Tensor, mesh: Mesh, split: Sequence[str]) -> Piece:
    """A tensor that lies as the parameter `like` does."""
    if isinstance(like, ShardParameter):
        writes = _is_first(mesh, (*like.axes, *split))
        return Piece(t, like.whole, like.boxes, writes)
    return Piece(t, t.shape, (whole_box(t.shape),), _is_first(mesh, split))


def _split_over(model: Module, mesh: Mesh, named: Sequence[str]) -> tuple[str, ...]:
    """The mesh axes along which ranks have other parameters."""
    found = (m.axis for m in model.modules() if isinstance(m, Pipeline))
    return tuple(dict.fromkeys([*named, *(axis for axis in found if axis in mesh.axes)]))


def _model_pieces(model: Module, mesh: Mesh, split: Sequence[str]) -> dict[str, Piece]:
    found = {_MODEL + n: _piece(p, p, mesh, split) for n, p in model.named_parameters()}
    for name, b in model.named_buffers():
        found[_BUFFER + name] = _piece(b, b, mesh, split)
    return found


class _Settings(NamedTuple):
    """What an optimiser remembers beside tensors."""

    groups: list[dict[str, Any]]
    values: dict[str, dict[str, Any]]  # by parameter: numbers, words


def _optimizer_pieces(
    model: Module, opt: Optimizer, mesh: Mesh, split: Sequence[str]
) -> tuple[dict[str, Piece], _Settings]:
    names = _names_of(model, opt)
    pieces: dict[str, Piece] = {}
    values: dict[str, dict[str, Any]] = {}
    # of a parameter of one number, the shape alone does not say whether a state is one like it
    counts = {
        key
        for p, held in opt.state.items()
        for key, value in held.items()
        if isinstance(value, Tensor) and value.shape == () != p.shape
    }
    for p, held in opt.state.items():
        name = names[id(p)]
        values[name] = {}
        for key, value in held.items():
            if not isinstance(value, Tensor):
                values[name][key] = value
            elif value.shape == p.shape and key not in counts:
                pieces[f"{_STATE}{name}/{key}"] = _piece(value, p, mesh, split)
            elif isinstance(p, ShardParameter) and value.ndim:
                raise ArgumentError(
                    f"save: {type(opt).__name__} keeps {key!r} of shape {value.shape} for a shard "
                    f"of {name}, {p.shape}: it cannot be put together"
                )
            else:
                alone = _piece(value, value, mesh, split)._replace(like=False)
                pieces[f"{_STATE}{name}/{key}"] = alone
    groups = [
        {k: v for k, v in group.items() if k != "params"}
        | {"params": [names[id(p)] for p in group["params"]]}
        for group in opt.param_groups
    ]
    return pieces, _Settings(groups, values)


def _names_of(model: Module, opt: Optimizer) -> dict[int, str]:
    names = {id(p): name for name, p in model.named_parameters()}
    for group in opt.param_groups:
        for p in group["params"]:
            if id(p) not in names:
                raise ArgumentError(
                    f"the optimiser has a parameter of shape {p.shape} that the model has not; "
                    f"give it parameters() of the model that is saved"
                )
    return names


def _elements(piece: Piece) -> np.ndarray[Any, Any]:
    """The elements of a piece as one vector, without padding."""
    values = piece.value.detach().to("cpu").numpy().reshape(-1)
    return np.ascontiguousarray(values[: sum(map(box_size, piece.boxes))])


def _apart(arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays, each with memory of its own: values that are shared now may go apart later, and a
    file holds shared ones once."""
    seen: set[int] = set()
    made = {}
    for key, array in arrays.items():
        place = array.__array_interface__["data"][0]
        made[key] = array.copy() if place in seen else array
        seen.add(place)
    return made


# --- agreement -----------------------------------------------------------------------------------


def _exchanged(mesh: Mesh, own: Any) -> list[Any]:
    """What each rank says, as JSON."""
    text = np.frombuffer(json.dumps(own).encode(), np.uint8).astype(np.int32)
    length = int(all_reduce(tensor(np.array([text.size])), mesh, None, "max").item())
    padded = np.full((length,), ord(" "), np.int32)
    padded[: text.size] = text
    rows = all_gather(tensor(padded), mesh, None).numpy().reshape(-1, length)
    return [json.loads(row.astype(np.uint8).tobytes().decode()) for row in rows]


def _agreed(mesh: Mesh, what: str, own: Any, error: BaseException | None) -> list[Any]:
    """What each rank says; raises on all of them if one of them failed."""
    said = _exchanged(mesh, {"failed": f"{type(error).__name__}: {error}"} if error else own)
    if error is not None:
        raise error
    for rank, words in enumerate(said):
        if isinstance(words, dict) and "failed" in words:
            raise FileError(f"{what}: rank {rank} failed: {words['failed']}")
    return said


# --- saving --------------------------------------------------------------------------------------


def save(
    folder: Any,
    mesh: Mesh,
    model: Module,
    optimizer: Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
    split_over: Sequence[str] = (),
) -> None:
    """Write a model and its optimiser, each rank what it has. All ranks of the mesh must call it.

    extra       numbers and words to keep beside them, such as the step; those of the first rank
    split_over  mesh axes along which ranks have other parameters, beside that of a `pipeline`

    The folder holds the checkpoint before until the new one is whole.

    >>> import everygrad as eg, tempfile
    >>> mesh, folder = eg.distributed.Mesh({"data": 1}), tempfile.mkdtemp()
    >>> model = eg.distributed.shard(eg.nn.Linear(3, 2), mesh, level=3)
    >>> opt = eg.optim.AdamW(model.parameters(), lr=0.1)
    >>> eg.distributed.save(folder, mesh, model, opt, {"step": 7})
    >>> eg.distributed.load(folder, mesh, model, opt)
    {'step': 7}
    """
    where = as_path(folder, "save")
    error: BaseException | None = None
    own: Any = None
    try:
        split_over = _split_over(model, mesh, split_over)
        pieces = _model_pieces(model, mesh, split_over)
        settings = _Settings([], {})
        if optimizer is not None:
            more, settings = _optimizer_pieces(model, optimizer, mesh, split_over)
            pieces |= more
        word = secrets.token_hex(8)
        own = {"word": word, "extra": dict(extra or {}), "groups": settings.groups}
        json.dumps(own)
        where.mkdir(parents=True, exist_ok=True)
    except (EverygradError, OSError, TypeError) as caught:
        error = caught
    word = _agreed(mesh, "save", own, error)[0]["word"]
    name = f"{word}-rank{mesh.rank:05d}.safetensors"
    try:
        written = {key: p for key, p in pieces.items() if p.writes}
        arrays = _apart({key: _elements(p) for key, p in written.items()})
        if arrays:
            write(where / name, Snapshot("save", arrays))
        own = {
            "groups": settings.groups,
            "values": settings.values,
            "tensors": {
                key: {
                    "shape": p.whole,
                    "dtype": str(p.value.dtype),
                    "like": p.like,
                    "boxes": p.boxes,
                    "file": name,
                }
                for key, p in written.items()
            },
        }
    except (EverygradError, OSError) as caught:
        error = caught
    said = _agreed(mesh, "save", own, error)
    try:
        _check_written(pieces, said)
    except ArgumentError as caught:
        error = caught
    _agreed(mesh, "save", None, error)
    if mesh.rank == 0:
        try:
            replace(where / MANIFEST, _rendered(said, dict(extra or {}), word))
        except OSError as caught:
            error = caught
    _agreed(mesh, "save", None, error)
    if mesh.rank == 0:
        _remove_older(where, word)


def _check_written(pieces: Mapping[str, Piece], said: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to leave out what this rank has and no rank writes."""
    written = {key for words in said for key in words["tensors"]}
    left = [_named(key) for key in pieces if key not in written]
    if left:
        raise ArgumentError(
            f"save: no rank would write {', '.join(left[:4])}{', ...' if len(left) > 4 else ''}, "
            f"which this one has and the first one has not; name the mesh axes along which ranks "
            f"have other parameters: split_over=(...)"
        )


def _rendered(said: Sequence[Mapping[str, Any]], extra: dict[str, Any], word: str) -> bytes:
    """The manifest: what all ranks wrote."""
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    groups: list[Any] = []
    for words in said:
        values |= words["values"]
        groups = _joined_groups(groups, words["groups"])
        for key, about in words["tensors"].items():
            known = {k: about[k] for k in ("shape", "dtype", "like")}
            held = tensors.setdefault(key, {**known, "parts": []})
            held["parts"].append({"file": about["file"], "boxes": about["boxes"]})
    content = {
        "version": 1, "word": word, "extra": extra, "groups": groups, "values": values,
        "tensors": tensors,
    }  # fmt: skip
    body = json.dumps(content)
    return json.dumps({"crc32": f"{zlib.crc32(body.encode()):08x}", "content": content}).encode()


def _joined_groups(groups: list[Any], more: list[Any]) -> list[Any]:
    """The settings of optimisers of ranks that have other parameters, group by group."""
    if not groups:
        return more
    made = []
    for own, other in zip(groups, more, strict=True):
        new = [name for name in other["params"] if name not in own["params"]]
        made.append({**own, "params": [*own["params"], *new]})
    return made


def _remove_older(where: Path, word: str) -> None:
    for path in where.iterdir():
        if _FILE.fullmatch(path.name) and not path.name.startswith(word):
            with suppress(OSError):
                path.unlink()


# --- loading -------------------------------------------------------------------------------------


class _Saved:
    """A manifest, and the files it names."""

    def __init__(self, where: Path) -> None:
        self.where = where
        path = where / MANIFEST
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            raise MissingFileError(
                f"load: {where} holds no {MANIFEST}: no checkpoint there is whole"
            ) from None
        try:
            whole = json.loads(text)
            self.content = whole["content"]
            crc = f"{zlib.crc32(json.dumps(self.content).encode()):08x}"
            fits = crc == whole["crc32"] and self.content["version"] == 1
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"load: {path} is damaged: {error}") from None
        if not fits:
            raise FileError(f"load: {path} is damaged: its checksum does not fit")
        self.tensors: dict[str, Any] = self.content["tensors"]

    def read(self, wanted: Mapping[str, Sequence[Box]]) -> dict[str, np.ndarray[Any, Any]]:
        """The elements of these boxes of these tensors, each as one vector."""
        made: dict[str, np.ndarray[Any, Any]] = {}
        left: dict[str, int] = {}
        by_file: dict[str, dict[str, list[Box]]] = {}
        for key, boxes in wanted.items():
            count = sum(map(box_size, boxes))
            left[key] = count
            for part in self.tensors[key]["parts"]:
                saved = [_as_box(b) for b in part["boxes"]]
                if any(_common(a, b) is not None for a in boxes for b in saved):
                    by_file.setdefault(part["file"], {})[key] = saved
        for file, held in sorted(by_file.items()):
            arrays = self._arrays(file, set(held))
            for key, saved in held.items():
                if key not in made:
                    size = sum(map(box_size, wanted[key]))
                    made[key] = np.empty((size,), arrays[key].dtype)
                left[key] -= _copied(made[key], wanted[key], arrays[key], saved)
        for key, count in left.items():
            if count:
                raise FileError(f"load: {count} elements of {key} are in no file of {self.where}")
            made.setdefault(key, np.empty((0,), np.float32))
        return made

    def _arrays(self, file: str, names: set[str]) -> dict[str, np.ndarray[Any, Any]]:
        if not _FILE.fullmatch(file):
            raise FileError(f"load: {MANIFEST} names a file {file!r:.80}")
        with reading(self.where / file, "load") as (opened, size):
            source = Source(opened, size, str(self.where / file), False, True)
            header = fmt.read_header(opened, size, source.name, True)
            lost = names - set(header.places)
            if lost:
                raise FileError(f"load: {source.name} has no {', '.join(sorted(lost))}")
            return read_arrays(source, header, names)


def _as_box(given: Any) -> Box:
    return tuple((int(a), int(b)) for a, b in given)


def _common(a: Box, b: Box) -> Box | None:
    """What lies in both boxes; None where nothing does."""
    made = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
    return None if any(p >= q for p, q in made) else made


def _views(flat: np.ndarray[Any, Any], boxes: Sequence[Box]) -> list[tuple[Box, Any]]:
    """Each box with its elements, as views of the vector."""
    made, at = [], 0
    for box in boxes:
        size = box_size(box)
        made.append((box, flat[at : at + size].reshape(box_shape(box))))
        at += size
    return made


def _copied(
    into: np.ndarray[Any, Any],
    wanted: Sequence[Box],
    source: np.ndarray[Any, Any],
    saved: Sequence[Box],
) -> int:
    """Copy what both have; returns how many elements that were."""
    count = 0
    for want, target in _views(into, wanted):
        for have, values in _views(source, saved):
            both = _common(want, have)
            if both is not None:
                target[_inside(want, both)] = values[_inside(have, both)]
                count += box_size(both)
    return count


def _inside(box: Box, part: Box) -> tuple[slice, ...]:
    pairs = zip(box, part, strict=True)
    return tuple(slice(p - a, q - a) for (a, _), (p, q) in pairs)


def load(
    folder: Any,
    mesh: Mesh,
    model: Module,
    optimizer: Optimizer | None = None,
    split_over: Sequence[str] = (),
) -> dict[str, Any]:
    """Give a model and its optimiser what `save` wrote, on however many ranks; returns `extra`.
    `split_over`: as in `save`.

    Every rank reads what it has of each tensor. If one of them cannot, all raise and nothing has
    changed.

    >>> import everygrad as eg, tempfile
    >>> mesh, folder = eg.distributed.Mesh({"data": 1}), tempfile.mkdtemp()
    >>> eg.distributed.save(folder, mesh, eg.nn.Linear(3, 2), extra={"step": 3})
    >>> eg.distributed.load(folder, mesh, eg.nn.Linear(3, 2))
    {'step': 3}
    """
    where = as_path(folder, "load")
    error: BaseException | None = None
    news: list[tuple[Tensor, Tensor]] = []
    state: dict[str, Any] | None = None
    extra: dict[str, Any] = {}
    try:
        saved = _Saved(where)
        split_over = _split_over(model, mesh, split_over)
        pieces = _model_pieces(model, mesh, split_over)
        _check_fits(saved, pieces, split_over)
        found = saved.read({key: p.boxes for key, p in pieces.items()})
        news = [(p.value, _shaped(found[key], p.value)) for key, p in pieces.items()]
        if optimizer is not None:
            state = _optimizer_state(saved, model, optimizer)
        extra = saved.content["extra"]
    except (EverygradError, OSError) as caught:
        error = caught
    _agreed(mesh, "load", None, error)
    with no_grad():
        if optimizer is not None and state is not None:
            optimizer.load_state_dict(state)
        for t, new in news:
            t.rebind(new._data, t._node)
    model.values_changed()
    return extra


def _shaped(flat: np.ndarray[Any, Any], like: Tensor, dtype: Any = None) -> Tensor:
    """A vector as a tensor like this one, padded where that is padded."""
    missing = int(like.size) - flat.size
    if missing:
        flat = np.concatenate([flat, np.zeros((missing,), flat.dtype)])
    return tensor(flat.reshape(like.shape), dtype or like.dtype, like.device)


def _check_fits(saved: _Saved, pieces: Mapping[str, Piece], split: Sequence[str]) -> None:
    """Refuse the checkpoint of another model."""
    own = {key: p.whole for key, p in pieces.items()}
    there = [key for key in saved.tensors if not key.startswith(_STATE)]
    missing = [_named(key) for key in own if key not in saved.tensors]
    unexpected = [] if split else [_named(key) for key in there if key not in own]
    if missing or unexpected:
        raise ArgumentError(
            f"load: {saved.where} is the checkpoint of another model: "
            f"{'; '.join(differences(missing, unexpected))}"
        )
    for key, whole in own.items():
        shape = tuple(saved.tensors[key]["shape"])
        if shape != whole:
            raise ShapeError(
                f"load: {saved.where}: {_named(key)} has shape {shape} there, {whole} in the model"
            )


def _named(key: str) -> str:
    return key.partition("/")[2]


def _optimizer_state(saved: _Saved, model: Module, opt: Optimizer) -> dict[str, Any]:
    """What the optimiser's `load_state_dict` takes."""
    names = _names_of(model, opt)
    groups = saved.content["groups"]
    own = [[names[id(p)] for p in group["params"]] for group in opt.param_groups]
    if len(groups) != len(own):
        raise ArgumentError(
            f"load: {saved.where} has {len(groups)} groups of parameters, the optimiser {len(own)}"
        )
    numbers: dict[str, int] = {}
    made: list[dict[str, Any]] = []
    for group, held in zip(groups, own, strict=True):
        missing = [name for name in held if name not in group["params"]]
        if missing:
            raise ArgumentError(
                f"load: {saved.where}: the optimiser's group there has no {', '.join(missing)}"
            )
        for name in held:
            numbers[name] = len(numbers)
        made.append({**group, "params": [numbers[name] for name in held]})
    params = {names[id(p)]: p for group in opt.param_groups for p in group["params"]}
    state: dict[int, dict[str, Any]] = {}
    for name, values in saved.content["values"].items():
        if name in numbers:
            state[numbers[name]] = dict(values)
    pieces: dict[str, tuple[int, str, Piece]] = {}
    for key, about in saved.tensors.items():
        name, _, what = _named(key).rpartition("/")
        if key.startswith(_STATE) and name in numbers:
            pieces[key] = (numbers[name], what, _target(about, params[name]))
    found = saved.read({key: piece.boxes for key, (_, _, piece) in pieces.items()})
    for key, (number, what, piece) in pieces.items():
        dtype = dtypes.as_dtype(saved.tensors[key]["dtype"])
        state[number][what] = _shaped(found[key], piece.value, dtype)
    return {"state": state, "param_groups": made}


def _target(about: Mapping[str, Any], p: Tensor) -> Piece:
    """Where a tensor of an optimiser's state goes: as its parameter lies, or whole."""
    shape = tuple(about["shape"])
    if about["like"] and isinstance(p, ShardParameter):
        return Piece(p, p.whole, p.boxes, False)
    like = p if shape == p.shape else zeros(shape, "float32", p.device)
    return Piece(like, shape, (whole_box(shape),), False, False)
