"""`eg.save`: nested objects of tensors in one file, or in several with an index."""

from __future__ import annotations

import os
from typing import Any

from everygrad.io.files import as_path
from everygrad.io.sharded import as_bytes, write_shards
from everygrad.io.snapshot import Snapshot, write


def save(path: Any, obj: Any, *, max_shard_size: int | str | None = None) -> None:
    """Write tensors, and whatever they are nested in, to a file that is there as a whole or not.

    `obj` is a tensor, a NumPy array, a number, text or None, an object with a `state_dict()`
    (modules, optimisers, generators, ...), or a dict, list, tuple or dataclass of these. The file
    is a safetensors file, with the rest as JSON in its header, and checksums. A file of that name
    is replaced when the new one is on the disk. With `max_shard_size`, bytes or text such as "5GB",
    `path` is an index (`model.safetensors.index.json`) beside files of that size.
    PyTorch's order, `save(obj, path)`, is understood.

    >>> import everygrad as eg, tempfile
    >>> file = tempfile.mkdtemp() + "/last.safetensors"
    >>> eg.save(file, {"model": eg.nn.Linear(3, 2), "step": 7, "random": eg.default_generator})
    >>> eg.load(file)["step"]
    7
    """
    if isinstance(obj, str | os.PathLike) and not isinstance(path, str | os.PathLike):
        path, obj = obj, path
    where = as_path(path, "save")
    shot = Snapshot("save", obj)
    if max_shard_size is None:
        write(where, shot)
    else:
        write_shards(where, shot, as_bytes(max_shard_size))
