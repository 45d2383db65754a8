"""Train a small convolutional network on handwritten digits (scikit-learn's bundled set).

    python examples/digits.py [--device webgpu] [--jit] [--epochs 20] [--out demo-output]

Prints the accuracy on digits the network has not seen, and writes the loss curve, some predictions
and the trained weights. Exits with 1 if the accuracy is below what `--target` asks for.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # pictures go to files; no display is needed

import matplotlib.pyplot as plt  # after the choice of backend
import numpy as np
from safetensors.numpy import save
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import everygrad as eg
from everygrad import nn, optim

BATCH = 64
BLUE, ORANGE, GREY = "#2a6fbb", "#e8743b", "#8a8f98"


def load(device: str) -> tuple[eg.Tensor, eg.Tensor, eg.Tensor, eg.Tensor]:
    """Images (count, 1, 8, 8) and labels to train on, then a quarter of both held out."""
    digits = load_digits()
    images = (digits.images[:, None] / 16.0).astype(np.float32)
    parts = train_test_split(
        images, digits.target, test_size=0.25, random_state=0, stratify=digits.target
    )
    train_x, test_x, train_y, test_y = (eg.tensor(part, device=device) for part in parts)
    return train_x, train_y, test_x, test_y


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(128, 10),
    )


def stepper(
    model: nn.Module, opt: optim.Optimizer, x: eg.Tensor, y: eg.Tensor, jit: bool
) -> Callable[[eg.Tensor], eg.Tensor]:
    """A function of the digits to learn from: one step of training, which gives the loss."""

    def step(index: eg.Tensor) -> eg.Tensor:
        loss: eg.Tensor = nn.functional.cross_entropy(model(x[index]), y[index])
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return eg.jit(step) if jit else step


def train(
    model: nn.Module, x: eg.Tensor, y: eg.Tensor, epochs: int, jit: bool = False
) -> list[float]:
    """The loss of every step."""
    opt = optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    step = stepper(model, opt, x, y, jit)
    shuffle = np.random.default_rng(0)
    per_epoch = len(x) // BATCH
    losses: list[float] = []
    model.train()
    with tqdm(total=epochs * per_epoch, unit="step", desc="training") as bar:
        for epoch in range(epochs):
            # the rate falls along half a cosine: large steps first, fine ones at the end
            opt.param_groups[0]["lr"] = 3e-3 * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
            order = shuffle.permutation(len(x))[: per_epoch * BATCH]
            found: list[eg.Tensor] = []
            for chosen in order.reshape(per_epoch, BATCH):
                found.append(step(eg.tensor(chosen, device=x.device)).detach())
                bar.update()
            # once an epoch: reading waits for the device to finish all that was asked of it
            losses += eg.stack(found).tolist()
            bar.set_postfix(loss=f"{np.mean(losses[-per_epoch:]):.4f}")
    return losses


def predict(model: nn.Module, x: eg.Tensor) -> Any:
    """The probability of each class for each image, as a NumPy array."""
    model.eval()
    with eg.no_grad():
        return nn.functional.softmax(model(x), axis=1).to("cpu").numpy()


def draw_losses(losses: list[float], epochs: int, path: Path) -> None:
    steps = np.arange(1, len(losses) + 1) / len(losses) * epochs
    width = min(len(losses), max(1, len(losses) // epochs))  # one epoch
    smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.semilogy(steps, losses, color=BLUE, alpha=0.3, linewidth=0.8, label="each step")
    middles = steps[width // 2 :][: len(smooth)]  # a mean stands in the middle of what it covers
    axes.semilogy(middles, smooth, color=BLUE, linewidth=2, label="mean over an epoch")
    axes.set(xlabel="epoch", ylabel="cross entropy (training)", xlim=(0, epochs))
    axes.set_title("Training loss on handwritten digits", loc="left", fontweight="bold")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(True, which="major", color=GREY, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_predictions(images: Any, labels: Any, probabilities: Any, path: Path) -> None:
    """The digits the network got wrong or was least sure of, then some others."""
    guesses, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
    doubtful = np.argsort(sure + (guesses == labels))[:10]
    others = np.setdiff1d(np.arange(len(labels)), doubtful)[:10]
    figure, axes = plt.subplots(4, 5, figsize=(8, 8.4), layout="constrained")
    for place, i in zip(axes.flat, [*others, *doubtful], strict=False):
        right = guesses[i] == labels[i]
        place.imshow(images[i, 0], cmap="gray_r", vmin=0, vmax=1)
        text = f"{guesses[i]}  ({sure[i]:.0%})"
        place.set_title(text if right else f"{text}, is {labels[i]}", fontsize=11,
                        color="black" if right else ORANGE,
                        fontweight="normal" if right else "bold")  # fmt: skip
        place.set(xticks=[], yticks=[])
        for side in place.spines.values():
            side.set(color=GREY if right else ORANGE, linewidth=0.8 if right else 2.5)
    figure.suptitle(
        f"Held-out digits: {np.sum(guesses == labels)} of {len(labels)} right\n"
        "above each: the prediction and its probability; lower half: wrong or least sure",
        fontsize=11,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def save_model(model: nn.Module, path: Path) -> None:
    """All of the file or none of it: a temporary file, fsync, rename, fsync of the folder."""
    arrays = {k: v.to("cpu").numpy() for k, v in model.state_dict().items()}
    data = save({k: np.ascontiguousarray(a).reshape(a.shape) for k, a in arrays.items()})
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu, webgpu or cuda (default: cpu)")
    parser.add_argument("--jit", action="store_true", help="compile the training step")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (default: 20)")
    parser.add_argument("--target", type=float, default=97.0, help="accuracy to reach, in percent")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="where files go")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")

    eg.manual_seed(0)
    train_x, train_y, test_x, test_y = load(options.device)
    model = network().to(options.device)
    start = time.perf_counter()
    losses = train(model, train_x, train_y, options.epochs, options.jit)
    seconds = time.perf_counter() - start
    probabilities = predict(model, test_x)
    labels = test_y.to("cpu").numpy()
    accuracy = 100.0 * float((probabilities.argmax(axis=1) == labels).mean())

    options.out.mkdir(parents=True, exist_ok=True)
    draw_losses(losses, options.epochs, options.out / "loss.png")
    draw_predictions(
        test_x.to("cpu").numpy(), labels, probabilities, options.out / "predictions.png"
    )
    save_model(model, options.out / "digits.safetensors")
    how = f"{options.device}, {'compiled' if options.jit else 'eager'}"
    print(f"trained in {seconds:.1f} s ({how}: {1e3 * seconds / len(losses):.1f} ms a step)")
    print(f"held-out accuracy: {accuracy:.2f} % of {len(labels)} digits")
    print(f"written: {', '.join(sorted(str(p) for p in options.out.iterdir() if p.is_file()))}")
    if accuracy < options.target:
        print(f"below the {options.target:g} % it should reach", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
