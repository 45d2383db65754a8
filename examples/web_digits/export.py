"""Export the digits network for the browser: draw a digit, see the probabilities.

    python examples/web_digits/export.py [--weights demo-output/digits.safetensors] [--serve 8000]

Takes the weights that `make demo` wrote; without them it trains for a few epochs first. The folder
it writes is static: any web server will do.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path

import everygrad as eg
from everygrad import nn
from everygrad.io import export_web

HERE = Path(__file__).parent
EPOCHS = 5


def trained(weights: Path) -> nn.Module:
    """The network as `make demo` left it, or trained now."""
    sys.path.insert(0, str(HERE.parent))
    demo = import_module("digits")  # examples/digits.py
    eg.manual_seed(0)
    model: nn.Module = demo.network()
    if weights.exists():
        eg.load(weights, into=model)
        return model
    print(f"{weights} is not there (make demo writes it): training for {EPOCHS} epochs")
    demo.fit(demo.make_trainer(model, EPOCHS), *demo.load(), EPOCHS)
    return model


def export(model: nn.Module, folder: Path) -> None:
    """The page: the network followed by softmax, for one image."""
    model = model.to("webgpu").eval()

    def probabilities(image: eg.Tensor) -> eg.Tensor:
        return nn.functional.softmax(model(image), axis=1)

    export_web(probabilities, eg.zeros((1, 1, 8, 8), device="webgpu"), folder)
    shutil.copyfile(HERE / "index.html", folder / "index.html")


def serve(folder: Path, port: int) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"open http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    weights = Path("demo-output/digits.safetensors")
    parser.add_argument("--weights", type=Path, default=weights, help=f"default: {weights}")
    parser.add_argument("--out", type=Path, default=Path("demo-output/web_digits"))
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve the page afterwards")
    options = parser.parse_args()
    export(trained(options.weights), options.out)
    print(f"written: {options.out}")
    if options.serve is None:
        print(f"see it: python -m http.server -d {options.out}")
    else:
        serve(options.out, options.serve)
    return 0


if __name__ == "__main__":
    sys.exit(main())
