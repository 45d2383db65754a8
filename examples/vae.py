"""Train a variational autoencoder on handwritten digits, and draw digits that nobody wrote.

    python examples/vae.py [--small] [--device webgpu] [--no-jit] [--epochs 150] [--latents 6]
                           [--hidden 256] [--out demo-output]

A pixel of scikit-learn's digits counts how many of 4 x 4 points were black, so the decoder gives a
binomial distribution for each pixel. The encoder gives a normal distribution over the latents,
`rsample` draws from it so that gradients pass, and the loss is the negative evidence lower bound:
the divergence of that normal from the standard one, less the log likelihood of the image.

At full size: 112 nats an image on unseen digits after 2,250 steps; 11 seconds of processor time.
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
from sklearn.datasets import load_digits

import everygrad as eg
from everygrad import distributions as D, nn, optim

POINTS = 16  # a pixel is a count up to this
PIXELS = 64
HELD_OUT = 297


class VAE(nn.Module):
    def __init__(self, latents: int, hidden: int) -> None:
        super().__init__()
        self.latents = latents
        self.encoder = nn.Sequential(
            nn.Linear(PIXELS, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.mean = nn.Linear(hidden, latents)
        self.log_scale = nn.Linear(hidden, latents)
        self.decoder = nn.Sequential(
            nn.Linear(latents, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, PIXELS),
        )

    def encode(self, x: eg.Tensor) -> D.Normal:
        """Where in the space of latents an image may lie."""
        h = self.encoder(x / POINTS * 2.0 - 1.0)
        return D.Normal(self.mean(h), self.log_scale(h).clip(-6.0, 3.0).exp())

    def decode(self, z: eg.Tensor) -> D.Binomial:
        """How an image of these latents may look."""
        return D.Binomial(POINTS, logits=self.decoder(z))

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        """The mean negative evidence lower bound of the images, in nats an image."""
        code = self.encode(x)
        likelihood = self.decode(code.rsample()).log_prob(x).sum(axis=1)
        prior = D.Normal(eg.zeros_like(code.loc), eg.ones_like(code.scale))
        divergence = D.kl_divergence(code, prior).sum(axis=1)
        loss: eg.Tensor = (divergence - likelihood).mean()
        return loss


def load() -> tuple[eg.data.TensorDataset, eg.data.TensorDataset]:
    """Digits (64,) as counts, to learn from and held out."""
    images = load_digits().data.astype(np.float32)
    return eg.data.TensorDataset(images[:-HELD_OUT]), eg.data.TensorDataset(images[-HELD_OUT:])


def train(options: argparse.Namespace) -> eg.training.Trainer:
    """The trainer behind its run: `history` has the losses, `ema.module` the averaged weights."""
    eg.manual_seed(0)
    model = VAE(options.latents, options.hidden).to(options.device)
    learnt, held_out = load()
    loader = eg.data.DataLoader(
        learnt, 100, shuffle=True, drop_last=True, generator=eg.Generator(0)
    )
    optimizer = optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    trainer = eg.training.Trainer(
        model,  # without a loss function: the model's output is the loss
        optimizer,
        scheduler=optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs),
        ema=0.95,
        clip_norm=100.0,
        jit=options.jit,
    )
    trainer.fit(loader, eg.data.DataLoader(held_out, HELD_OUT), epochs=options.epochs)
    return trainer


def picture(model: VAE, device: str, path: Path) -> None:
    """Held-out digits, what is left of them behind the latents, and samples of the prior."""
    _, held_out = load()
    digits = held_out.tensors[0][:12].to(device)
    with eg.no_grad():
        again = model.decode(model.encode(digits).loc).mean
        drawn = model.decode(eg.randn((36, model.latents), device=device)).mean
    rows = eg.concat([digits, again, drawn]).to("cpu").numpy().reshape(5, 12, 8, 8)
    figure, axes = plt.subplots(5, 12, figsize=(12, 5.6), layout="constrained")
    for i, names in enumerate(("held out", "decoded", "sampled", "", "")):
        axes[i, 0].set_ylabel(names, fontsize=12, fontweight="bold")
        for place, image in zip(axes[i], rows[i], strict=True):
            place.imshow(image, cmap="gray_r", vmin=0, vmax=POINTS, interpolation="bicubic")
            place.set(xticks=[], yticks=[])
            for side in place.spines.values():
                side.set(color="#8a8f98", linewidth=0.6)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu, webgpu or cuda (default: cpu)")
    yes_or_no = argparse.BooleanOptionalAction
    parser.add_argument("--jit", action=yes_or_no, default=True, help="compile the step")
    parser.add_argument("--small", action="store_true", help="sizes that run in seconds")
    sizes = {  # at full size, and with --small
        "epochs": (150, 6, "passes over the digits"),
        "latents": (6, 4, "numbers that stand for an image"),
        "hidden": (256, 64, "width of the layers between"),
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
    return options


def main() -> int:
    options = arguments()
    trainer = train(options)
    print(f"{trainer.step} steps in {trainer.history[-1]['seconds']:.1f} s")
    print(f"bound on unseen digits: {trainer.history[-1]['val_loss']:.1f} nats an image")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "vae.png"
    assert trainer.ema is not None
    model: Any = trainer.ema.module.eval()
    picture(model, options.device, path)
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
