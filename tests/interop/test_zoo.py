"""Six architectures of the zoo; `make zoo` runs them all, and writes benchmarks/ZOO.md."""

from __future__ import annotations

import re

import numpy as np
import pytest

from devtools.zoo import times
from devtools.zoo.check import CHECKS, Outcome, check, difference
from devtools.zoo.report import PAGE, page
from devtools.zoo.table import CASES

CHOSEN = ["BERT", "Llama", "ViT", "UNet", "LSTM", "Autoencoder"]

pytestmark = [
    pytest.mark.needs("float64"),
    # of PyTorch and the libraries, about themselves
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]


@pytest.mark.parametrize("name", CHOSEN)
def test_an_architecture_is_pytorchs(name: str) -> None:
    outcome = check(CASES[name])
    assert outcome.faults() == []
    assert outcome.missing == []
    assert outcome.right
    assert set(outcome.differences) == set(CHECKS)


def test_the_zoo_is_as_large_as_it_says() -> None:
    assert len(CASES) >= 40
    assert {case.library for case in CASES.values()} == {
        *("transformers", "timm", "torchvision", "torch")
    }
    assert len({case.name for case in CASES.values()}) == len(CASES)


def test_the_page_is_of_these_architectures() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (?:transformers|timm|torchvision|torch) \|", _page(), re.M)
    assert len(rows) >= len(CHOSEN)
    assert [name for name in CASES if name in rows] == rows


def _page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_a_fault_is_noticed_and_shown() -> None:
    a, b = np.array([1.0, 2.0]), np.array([1e-9])
    assert difference([a, b], [a, b * 2]) < 1e-6  # rounding beside the other tensor
    assert difference([a * 1.5, b], [a, b]) == pytest.approx(0.5)
    assert difference([a[:1]], [a]) == float("inf")
    assert difference([a * np.nan], [a]) == float("inf")
    outcome = Outcome("X", "torch", parameters=3)
    assert not outcome.right
    for name in CHECKS:
        outcome.differences[name], outcome.allowed[name] = 1e-7, 1e-5
    assert outcome.right
    outcome.differences["training"] = 0.1
    assert not outcome.right
    assert outcome.faults() == ["training: differs by 1.0e-01, above 1.0e-05"]
    assert "| X | torch | float32 | 3 | 1e-07 | 1e-07 | **1e-01** |" in page([outcome])
    outcome.failures["from_torch"] = "KeyError"
    assert "from_torch: KeyError" in outcome.faults()


def test_the_page_of_times_is_read_as_it_was_written() -> None:
    """A fresh checkout goes on from what the page says."""
    text = times.PAGE.read_text(encoding="utf-8")
    kept = times.read_page(text)
    assert set(kept) <= set(times.CASES)
    assert times.read_page(times.page(kept)) == kept
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [line for line in times.page(kept).splitlines() if line.startswith("| ")] == rows
    assert not times.read_page("")


def test_times_that_are_missing_are_measured_until_time_is_over(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(times, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(times, "PAGE", tmp_path / "page.md")
    asked = []

    def rounds(name, kind, threads):
        asked.append((name, kind, threads))
        return {"everygrad": 1.0, "inductor": 2.0, "others": 0.0}

    monkeypatch.setattr(times, "rounds", rounds)
    times.measure(["BERT"], ["rounds"], 2)
    times.measure(["BERT", "LSTM"], ["rounds"], 2, missing=True, minutes=0)
    assert [kind for _, kind, _ in asked] == ["inference", "training"]
    assert "left: LSTM inference (rounds), LSTM training (rounds)" in capsys.readouterr().out
    times.measure(["BERT", "LSTM"], ["rounds"], 2, missing=True)
    assert [name for name, _, _ in asked] == ["BERT", "BERT", "LSTM", "LSTM"]
