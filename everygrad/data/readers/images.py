"""Images, read by Pillow."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from everygrad.data.dataset import Dataset
from everygrad.errors import ArgumentError

_MODES = ("RGB", "RGBA", "L")
_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


def read_image(path: str | os.PathLike[str], mode: str = "RGB") -> Any:
    """An image as a uint8 array (channels, height, width); `mode` is "RGB", "RGBA" or "L" (grey).

    Pillow refuses images of more than some 180 million pixels, whose few bytes would unpack to
    gigabytes.

    >>> import everygrad as eg
    >>> eg.data.read_image("cat.jpg").shape  # doctest: +SKIP
    (3, 480, 640)
    """
    if mode not in _MODES:
        raise ArgumentError(f"read_image: mode must be one of {_MODES}, got {mode!r}")
    pillow = _pillow("read_image")
    try:
        with pillow.open(path) as image:
            pixels = np.asarray(image.convert(mode))
    except (pillow.DecompressionBombError, SyntaxError, EOFError) as error:
        raise ArgumentError(f"read_image: {os.fspath(path)}: {error}") from None
    except OSError as error:
        if error.errno is not None:  # no such file, no right to read it
            raise
        raise ArgumentError(f"read_image: {os.fspath(path)}: {error}") from None
    return np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1))


def _pillow(reader: str) -> Any:
    try:
        return import_module("PIL.Image")
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        raise ImportError(f"{reader}: needs Pillow: pip install pillow") from None


class ImageFolder(Dataset[tuple[Any, int]]):
    """Images in folders, one folder for each class: items are (image, number of the class).

    >>> import everygrad as eg
    >>> data = eg.data.ImageFolder("pets")  # doctest: +SKIP
    >>> data.classes  # doctest: +SKIP
    ['cat', 'dog']
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        mode: str = "RGB",
    ) -> None:
        _pillow("ImageFolder")
        self.root, self.mode = Path(root), mode
        self.transform, self.target_transform = transform, target_transform
        self.classes = sorted(p.name for p in self.root.iterdir() if p.is_dir())
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
        self.samples = [
            (str(path), number)
            for name, number in self.class_to_idx.items()
            for path in sorted((self.root / name).rglob("*"))
            if path.suffix.lower() in _SUFFIXES
        ]
        if not self.samples:
            raise ArgumentError(f"ImageFolder: no images in the folders of {self.root}")

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self.samples[index]
        image = read_image(path, self.mode)
        if self.transform is not None:
            image = self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)

    def __len__(self) -> int:
        return len(self.samples)
