"""What CONTRIBUTING.md and the README say of the repository is so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import everygrad as eg

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
CORE = ("core", "ops/record", "autograd", "compiler")


def words_of(page: Path) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    inside = [link for link in links if not link.startswith("http")]
    assert inside or page.name == "SECURITY.md"
    assert [link for link in inside if not (page.parent / link).exists()] == []


def test_paths_and_modules_exist() -> None:
    words = words_of(ROOT / "CONTRIBUTING.md")
    paths = [w for w in words if re.fullmatch(r"(everygrad|tests|docs)/[\w/.]+", w)]
    assert len(paths) > 10
    assert [w for w in paths if not (ROOT / w).exists()] == []
    modules = [w for w in words if re.fullmatch(r"(everygrad|devtools)(\.\w+)+", w)]
    files = [ROOT / w.replace(".", "/") for w in modules]
    assert [f for f in files if not (f.with_suffix(".py").exists() or f.is_dir())] == [
        ROOT / "everygrad/backends/base/Backend"
    ]


def test_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    said = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text()))
    assert {"test", "check"} <= said <= targets


def test_the_core_is_as_long_as_the_readme_says() -> None:
    found = re.search(r"`compiler/`\) are ([\d,]+) lines", (ROOT / "README.md").read_text())
    assert found
    package = ROOT / "everygrad"
    files = [package / "dispatch.py", *(p for part in CORE for p in (package / part).rglob("*.py"))]
    lines = sum(len(f.read_text().splitlines()) for f in files if f.name != "lazy_index.py")
    assert abs(lines - int(found[1].replace(",", ""))) < 1000


def test_the_version_is_the_changelogs() -> None:
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == eg.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
