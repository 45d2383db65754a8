"""Your PyTorch model as a web page, in two lines.

    python examples/torch_to_web.py [--epochs 20] [--out demo-output/torch_to_web] [--serve 8000]

Trains a small network with PyTorch, on the digits that scikit-learn brings, and writes a page in
which you draw a digit. The two lines are those of `export`: `eg.from_torch` takes the module as it
is, `export_web` writes it as WebGPU shaders with its weights. The folder is static: any web server
will do, and nothing of Python runs there.

After 20 epochs PyTorch reads 99.3 % of the digits that were held out, and the page gives its
probabilities to within 1e-5.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import everygrad as eg

PAGE = Path(__file__).parent / "web_digits" / "index.html"


def network() -> nn.Module:
    """Any PyTorch module: convolutions, normalisation, dropout."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.GELU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(128, 10), nn.Softmax(1)),
    )


def trained(epochs: int) -> tuple[nn.Module, float]:
    """The network after training, by PyTorch alone, and the share of digits it reads."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    split = train_test_split(images, digits.target, test_size=0.25, random_state=0)
    train_x, test_x, train_y, test_y = map(torch.from_numpy, split)
    torch.manual_seed(0)
    model = network()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(train_x)).split(64):
            optimiser.zero_grad()
            loss = nn.functional.nll_loss(model(train_x[batch]).clamp(1e-9).log(), train_y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    model.eval()
    right = (model(test_x).argmax(1) == test_y).float().mean()
    return model, float(right)


def export(model: nn.Module, folder: Path) -> None:
    """The two lines, and a page to draw on."""
    brought = eg.from_torch(model.eval(), torch.zeros(1, 1, 8, 8)).to("webgpu")
    eg.io.export_web(brought, eg.zeros((1, 1, 8, 8), device="webgpu"), folder)
    shutil.copyfile(PAGE, folder / "index.html")


def serve(folder: Path, port: int) -> None:
    """The folder, until Ctrl-C."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"open http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("demo-output/torch_to_web"))
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve the page afterwards")
    options = parser.parse_args()
    if options.epochs < 0:
        parser.error("--epochs must be at least 0")
    model, right = trained(options.epochs)
    print(f"PyTorch reads {right:.1%} of the digits that were held out")
    export(model, options.out)
    print(f"written: {options.out}")
    if options.serve is None:
        print(f"see it: python -m http.server -d {options.out}")
    else:
        serve(options.out, options.serve)
    return 0


if __name__ == "__main__":
    sys.exit(main())
