"""docs/reference: fresh, so that every example was run, and with one for every public function."""

from __future__ import annotations

from pathlib import Path

import pytest

import everygrad as eg
from devtools import reference


@pytest.mark.parametrize("page", reference.PAGES)
def test_every_function_has_an_example_that_runs(page: str) -> None:
    prefix, functions = reference.PAGES[page][1], reference.names()[page]
    assert len(functions) > 15
    assert set(reference.examples(page)) <= set(functions)  # none is left over
    lacking = [n for n, value in functions.items() if not reference.example_of(page, n, value)]
    assert lacking == [], f"add them to devtools/examples/{page}.txt"
    used = [n for n, e in reference.examples(page).items() if n not in " ".join(e.statements)]
    assert used == [], f"examples that do not show {prefix}: {used}"


def test_every_public_name_is_on_a_page() -> None:
    shown = {n for page in reference.PAGES for n in reference.names()[page]}
    functions = {n for n in eg.__all__ if reference._is_documented(getattr(eg, n))}
    assert len(functions) > 360
    assert functions <= shown


def test_the_pages_are_fresh() -> None:
    stale = [
        path.name
        for path, text in reference.pages().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run python -m devtools.reference"


def test_an_example_that_fails_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"eg\.ones\(2\) \+ 'a'"):
        reference.Example(("eg.ones(2) + 'a'",)).shown()
    assert reference.Example(("x = 3", "x + 1")).shown() == ">>> x = 3\n>>> x + 1\n4\n"


def test_a_stale_page_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    path = tmp_path / "reference" / "shape.md"
    monkeypatch.setattr(reference, "pages", lambda: {path: "new\n"})
    assert reference.main(["--check"]) == 1
    assert "shape.md is stale: run python -m devtools.reference" in capsys.readouterr().err
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    assert reference.main(["--chekc"]) == 2
