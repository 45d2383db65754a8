"""Train a small GPT, letter by letter, on the Python language reference that ships with Python.

    python examples/gpt.py [--device webgpu] [--jit] [--steps 500] [--layers 4] [--heads 4]
                           [--width 128] [--tokens 128] [--batch 16] [--seed 0] [--out demo-output]

Prints the loss on text it has learnt from and on text it has not, and a sample of what it writes;
draws the loss of every step. The same seed gives the same weights and batches on every device.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # pictures go to files; no display is needed

import matplotlib.pyplot as plt  # after the choice of backend
import numpy as np
from tqdm import tqdm

import everygrad as eg
from everygrad import nn, optim
from everygrad.nn import functional as F

HELD_OUT = 0.1  # of the text, at its end
RATE, WARM_UP = 3e-3, 20  # the highest learning rate, and the steps until it is reached
BLUE, ORANGE, GREY = "#2a6fbb", "#e8743b", "#8a8f98"


class Text:
    """The help texts of `help()`, one after the other, as numbers of their letters."""

    def __init__(self) -> None:
        whole = "\n\n".join(topics[name] for name in sorted(topics))
        self.letters = sorted(set(whole))
        number = {letter: i for i, letter in enumerate(self.letters)}
        numbers = np.array([number[letter] for letter in whole])
        cut = int(len(numbers) * (1 - HELD_OUT))
        self.learnt, self.held_out = numbers[:cut], numbers[cut:]

    def read(self, numbers: Sequence[int]) -> str:
        return "".join(self.letters[i] for i in numbers)


def batches(numbers: Any, batch: int, tokens: int, seed: int) -> Iterator[Any]:
    """Stretches of tokens + 1 letters from anywhere, `batch` at a time, without end."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(numbers) - tokens, batch)
        yield numbers[starts[:, None] + np.arange(tokens + 1)]


class Block(nn.Module):
    """Attention, then two layers for each letter alone; both are added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x: eg.Tensor) -> eg.Tensor:
        """Every letter looks at those before it, in `heads` ways at once."""
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        parts = self.qkv(x).split(width, axis=-1)
        q, k, v = (part.reshape(shape).permute_dims((0, 2, 1, 3)) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: eg.Tensor = self.mix(mixed.permute_dims((0, 2, 1, 3)).reshape(batch, tokens, width))
        return out

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        x = x + self.attention(self.norm1(x))
        out: eg.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class GPT(nn.Module):
    """Letters (batch, tokens) in; for each, the scores of the letter that follows."""

    def __init__(self, letters: int, layers: int, heads: int, width: int, tokens: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        places = self.places(eg.arange(x.shape[1], device=x.device))
        out: eg.Tensor = self.head(self.norm(self.blocks(self.letters(x) + places)))
        return out


def loss_of(model: nn.Module, stretch: eg.Tensor) -> eg.Tensor:
    """The cross entropy of each letter's successor, in nats a letter."""
    scores = model(stretch[:, :-1])
    flat, following = scores.reshape(-1, scores.shape[-1]), stretch[:, 1:].reshape(-1)
    loss: eg.Tensor = F.cross_entropy(flat, following)
    return loss


def stepper(model: nn.Module, opt: optim.Optimizer, jit: bool) -> Callable[[eg.Tensor], eg.Tensor]:
    """A function of a batch: one step of training, which gives the loss."""

    def step(stretch: eg.Tensor) -> eg.Tensor:
        loss = loss_of(model, stretch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return eg.jit(step) if jit else step


def rate(step: int, steps: int) -> float:
    """The learning rate: up in a line, then down along half a cosine to a tenth."""
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    gone = (step - WARM_UP) / max(1, steps - WARM_UP)
    return RATE * (0.1 + 0.45 * (1 + float(np.cos(np.pi * gone))))


def train(model: nn.Module, text: Text, options: argparse.Namespace) -> list[float]:
    """The loss of every step."""
    opt = optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    step = stepper(model, opt, options.jit)
    source = batches(text.learnt, options.batch, options.tokens, options.seed)
    every = max(1, min(20, options.steps // 10))  # steps between reads, which wait for the device
    losses: list[float] = []
    found: list[eg.Tensor] = []
    model.train()
    with tqdm(total=options.steps, unit="step", desc="training") as bar:
        for i in range(options.steps):
            opt.param_groups[0]["lr"] = rate(i, options.steps)
            found.append(step(eg.tensor(next(source), device=options.device)).detach())
            bar.update()
            if len(found) == every or i + 1 == options.steps:
                losses += eg.stack(found).tolist()
                found.clear()
                bar.set_postfix(loss=f"{losses[-1]:.4f}")
    return losses


def held_out_loss(model: nn.Module, text: Text, options: argparse.Namespace) -> float:
    """The mean loss of four batches of text the model has not learnt from."""
    source = batches(text.held_out, options.batch, options.tokens, options.seed)
    model.eval()
    with eg.no_grad():
        found = [loss_of(model, eg.tensor(next(source), device=options.device)) for _ in range(4)]
        mean: float = eg.stack(found).mean().item()
        return mean


def write(model: nn.Module, text: Text, options: argparse.Namespace) -> str:
    """What the model goes on with after the first letters of the text it has not learnt from.

    The window it sees is always full, with letters after the last one that it cannot look at: so
    there is one shape, and one compiled function.
    """
    tokens, rng = options.tokens, np.random.default_rng(options.seed)
    forward = eg.jit(model) if options.jit else model
    letters = text.held_out[: tokens // 2].tolist()
    begun = len(letters)
    model.eval()
    with eg.no_grad():
        for _ in range(options.sample):
            seen = letters[-tokens:]
            window = np.array([seen + [0] * (tokens - len(seen))])
            scores = forward(eg.tensor(window, device=options.device))[0, len(seen) - 1]
            letters.append(choose(scores.to("cpu").numpy(), rng))
    return text.read(letters[begun:])


def choose(scores: Any, rng: np.random.Generator, temperature: float = 0.8) -> int:
    """One letter by chance, likely ones a little more likely than the model says."""
    weights = np.exp((scores - scores.max()).astype(np.float64) / temperature)
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def draw_losses(losses: list[float], held_out: float, path: Path) -> None:
    steps = np.arange(1, len(losses) + 1)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(steps, losses, color=BLUE, linewidth=1.2, label="each step (training)")
    axes.axhline(held_out, color=ORANGE, linestyle="--", label="text it has not learnt from")
    axes.set(xlabel="step", ylabel="cross entropy, nats a letter", xlim=(0, len(losses)))
    axes.set_title("A small GPT on Python's language reference", loc="left", fontweight="bold")
    axes.grid(True, color=GREY, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu, webgpu or cuda (default: cpu)")
    parser.add_argument("--jit", action="store_true", help="compile the training step")
    sizes = {
        "steps": (500, "training steps"),
        "layers": (4, "blocks of attention and two layers"),
        "heads": (4, "heads of each attention"),
        "width": (128, "numbers that stand for a letter; a multiple of --heads"),
        "tokens": (128, "letters the model sees at once"),
        "batch": (16, "stretches of text a step"),
        "sample": (200, "letters to write at the end"),
    }
    for name, (default, about) in sizes.items():
        about = f"{about} (default: {default})"
        parser.add_argument(f"--{name}", type=int, default=default, help=about)
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and the sample")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="where files go")
    options = parser.parse_args(given)
    for name in sizes:
        if getattr(options, name) < (0 if name == "sample" else 1):
            parser.error(f"--{name} must be at least {0 if name == 'sample' else 1}")
    if options.tokens < 2:
        parser.error("--tokens must be at least 2: half of them start the sample")
    if options.width % options.heads:
        parser.error(f"--width {options.width} is not a multiple of --heads {options.heads}")
    return options


def build(text: Text, options: argparse.Namespace) -> GPT:
    """The model, its weights drawn on the CPU so that they are the same for every device."""
    eg.manual_seed(options.seed)
    sizes = (options.layers, options.heads, options.width, options.tokens)
    return GPT(len(text.letters), *sizes).to(options.device)


def main() -> int:
    options, text = arguments(), Text()
    model = build(text, options)
    count = sum(p.size for p in model.parameters())
    print(f"{count:,} parameters, {len(text.learnt):,} letters of {len(text.letters)} kinds")
    start = time.perf_counter()
    losses = train(model, text, options)
    seconds = time.perf_counter() - start
    held_out = held_out_loss(model, text, options)
    how = f"{options.device}, {'compiled' if options.jit else 'eager'}"
    print(f"trained in {seconds:.1f} s ({how}: {1e3 * seconds / len(losses):.1f} ms a step)")
    print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} at last, {held_out:.3f} held out")
    print(f"sample:\n{write(model, text, options)}")
    options.out.mkdir(parents=True, exist_ok=True)
    picture = options.out / "gpt-loss.png"
    draw_losses(losses, held_out, picture)
    print(f"written: {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
