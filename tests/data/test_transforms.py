"""Transforms: against formulas written by hand, the same eager and compiled, on every device."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.data import transforms as T
from everygrad.errors import ArgumentError, DtypeError, ShapeError

N, C, H, W = 6, 3, 8, 10


def images(device: str = "cpu", dtype: Any = np.float32) -> Any:
    values = np.random.default_rng(0).random((N, C, H, W)).astype(dtype)
    return eg.tensor(values, device=device)


RANDOM: dict[str, Any] = {
    "RandomCrop": lambda g: T.RandomCrop((5, 4), generator=g),
    "RandomCrop padded": lambda g: T.RandomCrop(8, padding=2, generator=g),
    "RandomResizedCrop": lambda g: T.RandomResizedCrop(6, generator=g),
    "RandomRotation": lambda g: T.RandomRotation(30, generator=g),
    "RandomHorizontalFlip": lambda g: T.RandomHorizontalFlip(generator=g),
    "RandomVerticalFlip": lambda g: T.RandomVerticalFlip(generator=g),
    "ColorJitter": lambda g: T.ColorJitter(0.4, 0.4, 0.4, 0.2, generator=g),
    "RandomGrayscale": lambda g: T.RandomGrayscale(0.5, generator=g),
    "RandomErasing": lambda g: T.RandomErasing(0.7, generator=g),
}
FIXED: dict[str, Any] = {
    "Compose": lambda g: T.Compose([T.CenterCrop(4), T.Normalize([0.5] * 3, [0.2] * 3)]),
    "ToFloat": lambda g: T.ToFloat(),
    "Resize": lambda g: T.Resize((5, 5)),
    "Pad": lambda g: T.Pad((1, 2, 3, 4), 0.5),
    "CenterCrop": lambda g: T.CenterCrop((6, 12)),
    "Grayscale": lambda g: T.Grayscale(3),
}


@pytest.mark.parametrize("case", [*RANDOM, *FIXED])
def test_eager_compiled_and_on_every_device(case: str, device: str) -> None:
    make = {**RANDOM, **FIXED}[case]
    x = images(device)
    wanted = make(eg.Generator(3))(images()).numpy()
    transform = make(eg.Generator(3))
    np.testing.assert_allclose(transform(x).numpy(), wanted, rtol=2e-5, atol=2e-5)
    assert transform(x).device == device
    transform = make(eg.Generator(3))
    step = eg.jit(lambda x: transform(x))
    np.testing.assert_allclose(step(x).numpy(), wanted, rtol=2e-5, atol=2e-5)
    if case in RANDOM:
        assert not np.allclose(step(x).numpy(), wanted), "a compiled step draws anew"


@pytest.mark.parametrize("case", [*RANDOM, *FIXED])
def test_one_image_is_a_batch_of_one(case: str) -> None:
    make = {**RANDOM, **FIXED}[case]
    x = images()[0]
    alone = make(eg.Generator(1))(x)
    batch = make(eg.Generator(1))(x.expand_dims(0))
    assert alone.ndim == 3
    np.testing.assert_array_equal(alone.numpy(), batch[0].numpy())
    from_numpy = make(eg.Generator(1))(x.numpy())
    np.testing.assert_array_equal(alone.numpy(), from_numpy.numpy())
    clip = make(eg.Generator(1))(images().reshape(2, 3, C, H, W))
    assert clip.shape[:2] == (2, 3)


@pytest.mark.parametrize("case", RANDOM)
def test_every_image_has_its_own_draw(case: str) -> None:
    same = eg.asarray(np.broadcast_to(images()[:1].numpy(), (16, C, H, W)).copy())
    made = RANDOM[case](eg.Generator(0))(same).numpy()
    assert len({m.tobytes() for m in made}) > 1


def test_crops_are_windows_of_their_image() -> None:
    x = images().numpy()
    made = T.RandomCrop((5, 4), generator=eg.Generator(2))(eg.asarray(x)).numpy()
    places = []
    for image, part in zip(x, made, strict=True):
        found = [
            (i, j)
            for i in range(H - 4)
            for j in range(W - 3)
            if np.array_equal(image[:, i : i + 5, j : j + 4], part)
        ]
        assert len(found) == 1
        places += found
    assert len({*places}) > 2


def test_a_crop_reaches_every_place_alike() -> None:
    x = np.broadcast_to(np.arange(4.0).reshape(1, 1, 1, 4), (4000, 1, 1, 4)).astype("float32")
    made = T.RandomCrop((1, 1), generator=eg.Generator(0))(eg.asarray(x.copy())).numpy().reshape(-1)
    counts = np.bincount(made.astype(int), minlength=4)
    assert abs(counts - 1000).max() < 150


def test_flips_and_their_chance() -> None:
    x = images().numpy()
    for transform, axis in ((T.RandomHorizontalFlip, 3), (T.RandomVerticalFlip, 2)):
        np.testing.assert_array_equal(transform(1.0)(x).numpy(), np.flip(x, axis))
        np.testing.assert_array_equal(transform(0.0)(x).numpy(), x)
        many = np.arange(2.0, dtype="float32").reshape((1, 1, 1, 2) if axis == 3 else (1, 1, 2, 1))
        many = np.repeat(many, 4000, 0)
        flipped = transform(0.25, generator=eg.Generator(1))(many).numpy().reshape(4000, 2)[:, 0]
        assert abs(flipped.mean() - 0.25) < 0.03


def test_sizes_are_pytorchs() -> None:
    x = images(dtype=np.float64)
    for size, wanted in ((5, (5, 6)), ((5, 7), (5, 7)), (16, (16, 20))):
        for mode in ("bilinear", "bicubic"):
            theirs = torch.nn.functional.interpolate(
                torch.tensor(x.numpy()), wanted, mode=mode, antialias=True
            )
            np.testing.assert_allclose(T.Resize(size, mode)(x).numpy(), theirs, atol=1e-12)
    bytes_ = eg.asarray((images().numpy() * 255).astype(np.uint8))
    made = T.Resize((4, 4))(bytes_)
    assert made.dtype is eg.uint8
    assert made.shape == (N, C, 4, 4)


def test_normalize_and_to_float() -> None:
    x = images(dtype=np.float64).numpy()
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    wanted = (x - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    np.testing.assert_allclose(T.Normalize(mean, std)(x).numpy(), wanted, atol=1e-15)
    values = np.array([0, 51, 255], np.uint8).reshape(1, 1, 3)
    np.testing.assert_allclose(T.ToFloat()(values).numpy().reshape(-1), [0, 0.2, 1], rtol=1e-6)


GREY = np.array([0.2989, 0.587, 0.114]).reshape(1, 3, 1, 1)


def test_colours_follow_their_formulas() -> None:
    x = images(dtype=np.float64).numpy()
    grey = (x * GREY).sum(1, keepdims=True)
    mean = grey.mean((1, 2, 3), keepdims=True)
    clipped = {
        "brightness": x * 1.5,
        "contrast": 1.5 * x - 0.5 * mean,
        "saturation": 1.5 * x - 0.5 * grey,
    }
    for name, wanted in clipped.items():
        made = T.ColorJitter(**{name: (1.5, 1.5)})(x)
        np.testing.assert_allclose(made.numpy(), wanted.clip(0, 1), atol=1e-7)
    turned = T.ColorJitter(hue=(0.3, 0.3))(x).numpy()
    for pixel, found in zip(
        x.transpose(0, 2, 3, 1).reshape(-1, 3),
        turned.transpose(0, 2, 3, 1).reshape(-1, 3),
        strict=True,
    ):
        h, s, v = colorsys.rgb_to_hsv(*pixel)
        np.testing.assert_allclose(found, colorsys.hsv_to_rgb((h + 0.3) % 1.0, s, v), atol=1e-6)
    np.testing.assert_allclose(T.Grayscale()(x).numpy(), grey, atol=1e-12)
    flat = np.full((1, 3, 2, 2), 0.4)
    np.testing.assert_array_equal(T.ColorJitter(hue=(0.3, 0.3))(flat).numpy(), flat)


def test_erasing_takes_one_rectangle_of_its_area() -> None:
    x = np.ones((200, 1, 20, 20), np.float32)
    erase = T.RandomErasing(
        1.0, scale=(0.1, 0.3), ratio=(0.5, 2.0), value=7.0, generator=eg.Generator(0)
    )
    made = erase(x).numpy()[:, 0]
    for image in made:
        lines, columns = np.nonzero((image == 7).any(1))[0], np.nonzero((image == 7).any(0))[0]
        h, w = len(lines), len(columns)
        assert h * w == (image == 7).sum()
        assert (h, w) == (lines[-1] - lines[0] + 1, columns[-1] - columns[0] + 1)
        assert 0.07 <= h * w / 400 <= 0.35
    np.testing.assert_array_equal(T.RandomErasing(0.0)(x).numpy(), x)


def test_mixing_images_and_labels_alike(device: str) -> None:
    values = np.arange(4.0, dtype=np.float32).reshape(4, 1, 1, 1) * np.ones(
        (4, 1, 6, 6), np.float32
    )
    labels = eg.tensor([0, 1, 2, 3], device=device)
    x = eg.tensor(values, device=device)
    for kind in (T.MixUp, T.CutMix):
        mix = kind(0.8, num_classes=4, generator=eg.Generator(1))
        step = eg.jit(lambda x, y, mix=mix: mix(x, y))
        shares = []
        for _ in range(4):
            images_, y = step(x, labels)
            y, pixels = y.numpy(), images_.numpy()
            np.testing.assert_allclose(y.sum(1), 1.0, rtol=1e-6)
            for i in range(4):
                share, before = y[i, i], (i - 1) % 4
                np.testing.assert_allclose(y[i, before], 1 - share, atol=1e-6)
                np.testing.assert_allclose(
                    pixels[i].mean(), share * i + (1 - share) * before, atol=1e-5
                )
            if kind is T.CutMix:
                assert {*np.unique(pixels)} <= {0.0, 1.0, 2.0, 3.0}
            shares.append(float(y[0, 0]))
        assert len({*shares}) > 1


def test_a_loader_seeds_transforms() -> None:
    class Data(eg.data.Dataset[Any]):
        transform = T.Compose([T.RandomCrop(4), T.RandomHorizontalFlip()])

        def __len__(self) -> int:
            return 6

        def __getitem__(self, i: int) -> Any:
            return self.transform(images()[i])

    found = [
        [b.tolist() for b in eg.data.DataLoader(Data(), 2, generator=eg.Generator(4), **more)]
        for more in ({}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"})
    ]
    assert found[0] == found[1] == found[2]


REFUSALS: dict[str, tuple[type[Exception], Any]] = {
    "p must be": (ArgumentError, lambda: T.RandomHorizontalFlip(1.5)),
    "size must be 1": (ArgumentError, lambda: T.RandomCrop(0)),
    "size is a number": (ArgumentError, lambda: T.CenterCrop((1, 2, 3))),
    "no .9, 9. in an image": (ShapeError, lambda: T.RandomCrop(9)(images())),
    "std above 0": (ArgumentError, lambda: T.Normalize([0.5], [0.0])),
    "2 means for 3 channels": (ShapeError, lambda: T.Normalize([1, 2], [1, 2])(images())),
    "put ToFloat": (DtypeError, lambda: T.Normalize([0.5], [1.0])(np.ones((3, 2, 2), np.uint8))),
    "hue must not exceed": (ArgumentError, lambda: T.ColorJitter(hue=(0.0, 0.7))),
    "brightness must be 0": (ArgumentError, lambda: T.ColorJitter(brightness=-1)),
    "scale must not exceed 1": (ArgumentError, lambda: T.RandomErasing(scale=(0.1, 2))),
    "ratio must be": (ArgumentError, lambda: T.RandomErasing(ratio=(3, 1))),
    "interpolation must be": (ArgumentError, lambda: T.Resize(3, "lanczos")),
    "padding is 1, 2 or 4": (ArgumentError, lambda: T.Pad((1, 2, 3))),
    "takes .*channels, height": (ShapeError, lambda: T.Grayscale()(np.ones((4, 4)))),
    "1 or 3 channels, got 2": (ShapeError, lambda: T.Grayscale()(np.ones((2, 4, 4)))),
    "alpha must be above 0": (ArgumentError, lambda: T.MixUp(0)),
    "need num_classes": (ArgumentError, lambda: T.MixUp()(images(), eg.arange(N))),
    "takes a batch": (ShapeError, lambda: T.CutMix(num_classes=2)(images(), eg.arange(3))),
}


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals(text: str) -> None:
    error, call = REFUSALS[text]
    with pytest.raises(error, match=text):
        call()
