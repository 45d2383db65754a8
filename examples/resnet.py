"""Train a ResNet-18 to tell eight shapes and patterns apart, in images that NumPy draws.

    python examples/resnet.py [--small] [--device webgpu] [--no-jit] [--epochs 5] [--images 1600]
                              [--size 32] [--width 64] [--batch 16] [--out demo-output]

The network is the one of "Deep Residual Learning for Image Recognition" (He et al., 2015), with
torchvision's names of parameters. Images are cropped, flipped and recoloured anew each time
they are seen: the transforms are ops, so they run on the device, in the compiled step.

At full size (11.2 million parameters, 500 steps of 16 images): 86.5 % of 400 unseen images right,
where chance is 12.5 %; 130 seconds of processor time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # pictures go to files; no display is needed

import matplotlib.pyplot as plt  # after the choice of backend
import numpy as np

import everygrad as eg
from everygrad import nn, optim
from everygrad.data import transforms as T

NAMES = ("disc", "ring", "square", "triangle", "cross", "crescent", "stripes", "checks")
RATE = 1e-3  # the highest learning rate


# --- the images ----------------------------------------------------------------------------------


def draw(count: int, size: int, seed: int) -> tuple[Any, Any]:
    """Images (count, 3, size, size) of bytes and the number of the shape in each.

    Place, size, angle and colours are random, and there is noise over all of it.
    """
    rng = np.random.default_rng(seed)

    def each(low: float, high: float) -> Any:
        """A random number for each image, to compute with its pixels."""
        return rng.uniform(low, high, (count, 1, 1))

    labels = np.arange(count) % len(NAMES)
    line = np.linspace(-1, 1, size)
    x, y = line[None, None, :] - each(-0.2, 0.2), line[None, :, None] - each(-0.2, 0.2)
    angle, radius = each(0, 2 * np.pi), each(0.5, 0.8)
    # each image has axes of its own, turned, in which its shape is of size 1
    u = (np.cos(angle) * x + np.sin(angle) * y) / radius
    v = (np.cos(angle) * y - np.sin(angle) * x) / radius
    distance, waves = np.hypot(u, v), each(6, 9)
    inside = np.select(
        [labels[:, None, None] == i for i in range(len(NAMES))],
        [
            distance < 1,
            (distance < 1) & (distance > 0.6),
            np.maximum(abs(u), abs(v)) < 0.8,
            (v > -0.5) & (v < 1 - 1.7 * abs(u)),
            (np.minimum(abs(u), abs(v)) < 0.25) & (distance < 1),
            (distance < 1) & (np.hypot(u - 0.45, v) > 0.8),
            np.sin(waves * u) > 0,
            (np.sin(waves * u) > 0) ^ (np.sin(waves * v) > 0),
        ],
    )
    front = rng.uniform(0, 1, (count, 3, 1, 1))
    back = (front + rng.uniform(0.35, 0.65, front.shape)) % 1.0  # far enough in every channel
    images = np.where(inside[:, None], front, back) + rng.normal(0, 0.05, (count, 3, size, size))
    return (255 * images.clip(0, 1)).astype(np.uint8), labels


class Prepare(nn.Module):
    """Bytes to normalised floats; while training, each image is changed at random."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.change = T.Compose(
            [
                T.RandomCrop(size, padding=size // 8, padding_mode="reflect"),
                T.RandomHorizontalFlip(),
                T.RandomVerticalFlip(),
                T.ColorJitter(brightness=0.2, contrast=0.2),
            ]
        )
        self.normalize = T.Normalize([0.5, 0.5, 0.5], [0.25, 0.25, 0.25])

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        x = x.astype("float32") / 255.0
        if self.training:
            x = self.change(x)
        out: eg.Tensor = self.normalize(x)
        return out


# --- the network ---------------------------------------------------------------------------------


class Block(nn.Module):
    """Two convolutions, and what came in is added to what they make of it."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = nn.Sequential()  # the shortcut, where shapes differ
        if stride != 1 or channels != out:
            shortcut = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(out))

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        y = self.bn1(self.conv1(x)).relu()
        out: eg.Tensor = (self.bn2(self.conv2(y)) + self.downsample(x)).relu()
        return out


class ResNet18(nn.Module):
    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = nn.Sequential(Block(width, width, 1), Block(width, width, 1))
        self.layer2 = self.halved(width)
        self.layer3 = self.halved(2 * width)
        self.layer4 = self.halved(4 * width)
        self.fc = nn.Linear(8 * width, classes)

    @staticmethod
    def halved(channels: int) -> nn.Module:
        """Half as high and wide, with twice the channels."""
        return nn.Sequential(Block(channels, 2 * channels, 2), Block(2 * channels, 2 * channels, 1))

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        x = self.pool(self.bn1(self.conv1(x)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: eg.Tensor = self.fc(x.mean(axis=(2, 3)))
        return out


# --- the run -------------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> eg.training.Trainer:
    """The trainer behind its run: `history` has the losses and accuracies, `model` the weights."""
    eg.manual_seed(0)
    model = nn.Sequential(Prepare(options.size), ResNet18(len(NAMES), options.width))
    model.to(options.device)
    learnt = eg.data.TensorDataset(*draw(options.images, options.size, seed=1))
    held_out = eg.data.TensorDataset(*draw(options.images // 4, options.size, seed=2))
    loader = eg.data.DataLoader(
        learnt, options.batch, shuffle=True, drop_last=True, generator=eg.Generator(0)
    )
    optimizer = optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    trainer = eg.training.Trainer(
        model,
        optimizer,
        nn.CrossEntropyLoss(label_smoothing=0.05),
        scheduler=optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=RATE, total_steps=options.epochs * len(loader) + 1
        ),
        scheduler_every="step",
        metrics={"accuracy": eg.training.metrics.Accuracy()},
        clip_norm=5.0,
        jit=options.jit,
    )
    trainer.fit(loader, eg.data.DataLoader(held_out, options.batch), epochs=options.epochs)
    return trainer


def picture(model: nn.Module, options: argparse.Namespace, path: Path) -> None:
    """New images, with what the network takes them for."""
    images, labels = draw(24, options.size, seed=3)
    model.eval()
    with eg.no_grad():
        scores = model(eg.tensor(images, device=options.device)).softmax(axis=1).to("cpu").numpy()
    figure, axes = plt.subplots(3, 8, figsize=(12, 5.2), layout="constrained")
    for place, image, label, score in zip(axes.flat, images, labels, scores, strict=True):
        said = score.argmax()
        place.imshow(image.transpose(1, 2, 0))
        place.set_title(
            f"{NAMES[said]} ({score[said]:.0%})",
            fontsize=10,
            color="black" if said == label else "#e8743b",
        )
        place.set_axis_off()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu, webgpu or cuda (default: cpu)")
    yes_or_no = argparse.BooleanOptionalAction
    parser.add_argument("--jit", action=yes_or_no, default=True, help="compile the step")
    parser.add_argument("--small", action="store_true", help="sizes that run in seconds")
    sizes = {  # at full size, and with --small
        "epochs": (5, 12, "passes over the images"),
        "images": (1600, 512, "to learn from; a quarter as many are held out"),
        "size": (32, 32, "pixels of a side"),
        "width": (64, 8, "channels of the first layer"),
        "batch": (16, 16, "images a step"),
    }
    for name, (full, small, about) in sizes.items():
        about = f"{about} (default: {full}, --small: {small})"
        parser.add_argument(f"--{name}", type=int, help=about)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="where files go")
    options = parser.parse_args(given)
    for name, (full, small, _) in sizes.items():
        if getattr(options, name) is None:
            setattr(options, name, small if options.small else full)
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.images < max(options.batch, 4):
        parser.error("--images must be at least --batch, and 4")
    return options


def main() -> int:
    options = arguments()
    trainer = train(options)
    last = trainer.history[-1]
    count = sum(p.size for p in trainer.model.parameters())
    print(f"{count:,} parameters, {trainer.step} steps in {last['seconds']:.1f} s")
    print(f"held-out accuracy: {last['val_accuracy']:.2%} of {options.images // 4} images")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "resnet.png"
    picture(trainer.model, options, path)
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
