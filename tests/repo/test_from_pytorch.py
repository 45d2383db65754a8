"""docs/from-pytorch.md: fresh, and with a reason for every name that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools import from_pytorch, torch_lists

KEPT = from_pytorch.reasons()
LIMITED = ("torch.linalg", "torch.special", "torch.fft", *KEPT)


def test_the_page_is_fresh() -> None:
    found = from_pytorch.PAGE.read_text(encoding="utf-8")
    assert found == from_pytorch.page(), "run python -m devtools.from_pytorch"


def test_a_stale_page_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(from_pytorch, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(from_pytorch, "page", lambda: "new\n")
    assert from_pytorch.main(["--check"]) == 1
    assert "page.md is stale: run python -m devtools.from_pytorch" in capsys.readouterr().err
    assert from_pytorch.main([]) == 0
    assert from_pytorch.main(["--check"]) == 0
    assert from_pytorch.main(["--chekc"]) == 2


@pytest.mark.parametrize("part", dict.fromkeys([*torch_lists.FUNCTIONS_OF, *KEPT]))
def test_every_absent_name_has_a_reason(part: str) -> None:
    assert len(torch_lists.names_of(part)) > 1
    lacking = torch_lists.absent(part)
    assert [n for n, why in lacking.items() if not (KEPT.get(part, {}).get(n) or why)] == []


@pytest.mark.parametrize("part", dict.fromkeys(LIMITED))
def test_at_most_a_tenth_is_absent(part: str) -> None:
    names = torch_lists.names_of(part)
    assert len(torch_lists.absent(part)) <= len(names) / 10


def test_a_table_of_any_part_is_taken(monkeypatch) -> None:
    monkeypatch.setattr(from_pytorch, "TABLES", (("tests.repo.test_from_pytorch", "OWN", ""),))
    assert from_pytorch.reasons() == {"torch.nn": {"Container": "use Module"}}
    monkeypatch.setattr(from_pytorch, "TABLES", (("no_such_module", "ABSENT", ""),))
    assert from_pytorch.reasons() == {}


OWN = {"torch.nn": {"Container": "use Module"}}
