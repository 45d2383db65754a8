"""A PyTorch model as a web page: the example's page, in headless Chromium, beside PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples import torch_to_web
from tests.api.test_export_web import (
    DRAWN,
    PICTURES,
    RUN,
    browser as browser,
    draw,
    opened,
    pytestmark as pytestmark,
)


def test_a_digit_drawn_on_the_page_is_read_as_pytorch_reads_it(
    browser: Any, tmp_path: Path
) -> None:
    model, right = torch_to_web.trained(6)
    assert right > 0.95
    folder = tmp_path / "page"
    torch_to_web.export(model, folder)
    PICTURES.mkdir(exist_ok=True)
    with opened(browser, folder) as page:
        for points in DRAWN.values():
            page.click("#clear")
            draw(page, points)
            page.wait_for_timeout(300)
            latest = page.evaluate("window.latest")
            image = torch.tensor(latest["pixels"]).reshape(1, 1, 8, 8)
            want = model(image).detach().numpy()[0]
            np.testing.assert_allclose(latest["probabilities"], want, atol=1e-5)
        noise = torch.rand(64, generator=torch.Generator().manual_seed(1))
        for (got,) in page.evaluate(RUN, [noise.tolist()]):
            want = model(noise.reshape(1, 1, 8, 8)).detach().numpy()[0]
            np.testing.assert_allclose(got, want, atol=1e-5)
        page.screenshot(path=PICTURES / "torch_to_web.png")
