"""`eg.load`: what `eg.save` wrote, other safetensors files, sharded ones, and PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everygrad.backends import base
from everygrad.errors import ArgumentError
from everygrad.io import safetensors_format as fmt, sharded, torch_files
from everygrad.io.files import as_path, read_at, reading
from everygrad.io.restore import restore
from everygrad.io.source import Source
from everygrad.io.unpacking import unpacked


def load(
    path: Any,
    into: Any = None,
    *,
    device: str | None = None,
    mmap: bool = False,
    verify: bool | None = None,
    map_location: str | None = None,
    weights_only: bool = True,
) -> Any:
    """What a file holds: nested dicts, lists and tuples of tensors and values.

    Takes what `eg.save` wrote, any safetensors file, the index of a sharded one
    (`model.safetensors.index.json`), and PyTorch's `.pt` and `.bin` files, of which nothing is
    executed. With `into`, an object of the structure that was saved, its modules, optimisers,
    tensors and values are given what the file holds, and it is returned; if that raises, nothing
    has changed. `device` is where tensors go. `mmap` maps the file, and reads what is used when it
    is used. `verify` compares checksums; the default is to do so unless the file is mapped.
    PyTorch's `map_location` is `device`; its `weights_only` is always so.

    >>> import everygrad as eg, tempfile
    >>> file = tempfile.mkdtemp() + "/model.safetensors"
    >>> model = eg.nn.Linear(3, 2)
    >>> eg.save(file, model)
    >>> {name: t.shape for name, t in eg.load(file).items()}
    {'weight': (2, 3), 'bias': (2,)}
    >>> eg.load(file, into=model) is model
    True
    """
    where = as_path(path, "load")
    if map_location is not None:
        if device is not None or not isinstance(map_location, str):
            raise ArgumentError(
                f"load: map_location is the name of a device, and device= says the same; got "
                f"{map_location!r} and {device!r}"
            )
        device = map_location
    if device is not None:
        base.get(device)  # is it there?
    found = contents(where, device, mmap, not mmap if verify is None else verify)
    return found if into is None else restore(into, found, str(where))


def contents(path: Path, device: str | None, mapped: bool, verify: bool) -> Any:
    """What a file holds, by what it begins with."""
    if path.name.endswith(".json"):
        return sharded.load_index(path, device, mapped, verify)
    with reading(path, "load") as (file, size):
        start = bytearray(min(size, 4))
        read_at(file, memoryview(start), 0, str(path))
        source = Source(file, size, str(path), mapped, verify)
        if start == torch_files.ZIP:
            return torch_files.from_zip(source, device)
        if start == torch_files.STREAM:
            return torch_files.from_stream(source, device)
        header = fmt.read_header(file, size, str(path), verify)
        return unpacked(source, header, device)
