"""Folders as Hugging Face lays them out: safetensors files, sharded or not, into tensors and
modules whose parts may have other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from everygrad import dtypes
from everygrad.backends import base
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, FileError, MissingFileError
from everygrad.io import safetensors_format as fmt, sharded
from everygrad.io.files import as_path, missing, reading
from everygrad.io.loading import contents
from everygrad.io.source import Source, as_tensor
from everygrad.io.unpacking import read_arrays
from everygrad.nn.module import Module
from everygrad.ops.python.creation import tensor

Rename = Mapping[str, str | None] | Callable[[str], str | None]

# What a folder's weights may lie in, the first that is there counts.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_TORCH_WEIGHTS = "pytorch_model.bin"


def load_safetensors(path: Any, *, device: str | None = None, mmap: bool = True) -> dict[str, Any]:
    """The tensors of a safetensors file, an index of several, or a folder that holds either.

    Dtypes are those of the file. With `mmap`, on the CPU, a tensor's bytes are read when they are
    used; its memory is the file's, which must not be written to meanwhile.

    >>> import everygrad as eg, tempfile
    >>> file = tempfile.mkdtemp() + "/model.safetensors"
    >>> eg.save(file, {"weight": eg.ones((2, 3), dtype="bfloat16")})
    >>> eg.io.load_safetensors(file)["weight"].dtype
    everygrad.bfloat16
    """
    where = as_path(path, "load_safetensors")
    if device is not None:
        base.get(device)  # is it there?
    where = weights_of(where, "load_safetensors") if where.is_dir() else where
    if where.name.endswith(".json"):
        found = sharded.load_index(where, device, mmap, not mmap)
        if not isinstance(found, dict) or not all(hasattr(v, "dtype") for v in found.values()):
            raise FileError(f"load_safetensors: {where} holds more than tensors; eg.load reads it")
        return found
    with reading(where, "load_safetensors") as (file, size):
        header = fmt.read_header(file, size, str(where), not mmap)
        arrays = read_arrays(Source(file, size, str(where), mmap, not mmap), header)
    return {name: as_tensor(array, device) for name, array in arrays.items()}


def weights_of(folder: Path, what: str) -> Path:
    """The file of a folder that holds its weights, or the index of several."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    single = sorted(folder.glob("*.safetensors"))
    if len(single) == 1:
        return single[0]
    if not folder.is_dir():
        raise MissingFileError(f"{what}: {missing(folder)}")
    there = ", ".join(sorted(p.name for p in folder.iterdir())[:20]) or "nothing"
    raise MissingFileError(
        f"{what}: {folder} has neither {_WEIGHTS[0]} nor {_WEIGHTS[1]}; there is {there}"
    )


def load_hf(
    module: Module,
    folder: Any,
    rename: Rename | None = None,
    *,
    strict: bool = True,
    dtype: Any = None,
) -> None:
    """Give a module the weights of a folder; `nn.Module.load_hf` says how."""
    name = type(module).__name__
    where = as_path(folder, "load_hf")
    found = renamed(_tensors(where), rename)
    for at, part in list(module._walk()):
        part.before_loading(found, f"{at}." if at else "")
    state = module._state()
    for names in _aliases(state).values():
        given = [n for n in names if n in found]
        found |= {n: found[given[0]] for n in names if given}  # one parameter under several names
    module.state_faults(found).refuse(f"load_hf: {name} from {where}", strict)
    wanted = None if dtype is None or dtype == "file" else dtypes.as_dtype(dtype)
    news = []
    for key, held in state.items():
        if key in found:
            to = wanted or (found[key].dtype if dtype == "file" else held.dtype)
            keep = not held.dtype.is_differentiable
            news.append((held, tensor(found[key], held.dtype if keep else to, held.device)))
    for held, new in news:
        held.rebind(new._data, held._node)


def _tensors(where: Path) -> dict[str, Any]:
    """A file's or a folder's tensors; PyTorch's own files are read too, without executing them."""
    if where.is_dir() and not any((where / n).is_file() for n in _WEIGHTS):
        plain = where / _TORCH_WEIGHTS
        index = where / f"{_TORCH_WEIGHTS}.index.json"
        if plain.is_file():
            return dict(contents(plain, None, True, False))
        if index.is_file():
            raise FileError(
                f"load_hf: {where} holds PyTorch's files in several parts; save it as safetensors "
                f"(model.save_pretrained(folder)), or join the parts read by eg.load"
            )
    return load_safetensors(where)


def renamed(found: Mapping[str, Any], rename: Rename | None) -> dict[str, Any]:
    """Entries under the names that a table or a function gives them; those named None are left out.

    A table's keys are parts of names, compared where a name begins or behind a dot, in their order.

    >>> table = {"bert.": "", "LayerNorm.": "norm.", "pooler.": None}
    >>> renamed({"bert.LayerNorm.bias": 1, "bert.pooler.bias": 2}, table)
    {'norm.bias': 1}
    """
    if rename is None:
        return dict(found)
    name_of = rename if callable(rename) else _by_table(rename)
    out: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value in found.items():
        new = name_of(name)
        if new is None:
            continue
        if not isinstance(new, str):
            raise ArgumentError(
                f"load_hf: rename gave {type(new).__name__} for {name!r}; it gives text, or None "
                f"to leave an entry out"
            )
        if new in out:
            raise ArgumentError(f"load_hf: rename calls both {origin[new]!r} and {name!r} {new!r}")
        out[new], origin[new] = value, name
    return out


def _by_table(table: Mapping[str, str | None]) -> Callable[[str], str | None]:
    for there, here in table.items():
        if not isinstance(there, str) or not there or not (here is None or isinstance(here, str)):
            raise ArgumentError(
                f"load_hf: rename maps text to text or None, got {there!r}: {here!r}"
            )

    def name_of(name: str) -> str | None:
        for there, here in table.items():
            dotted = f".{name}"
            if f".{there}" in dotted:
                if here is None:
                    return None
                name = dotted.replace(f".{there}", f".{here}")[1:]
        return name

    return name_of


def _aliases(state: Mapping[str, Tensor]) -> dict[int, list[str]]:
    """The names of each tensor that has several."""
    names: dict[int, list[str]] = {}
    for name, held in state.items():
        names.setdefault(id(held), []).append(name)
    return {key: found for key, found in names.items() if len(found) > 1}
