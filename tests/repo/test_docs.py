"""What the README and docs/ show is run, so that it stays true.

The ```python blocks of a file run in order, in one namespace, in a fresh process. A ```text block
directly behind one is what it prints, line for line. A block that
cannot run here is preceded by `<!-- not run: the reason -->`; it must still be valid Python.
"""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
SHELL = {"sh", "console"}
# any other would be a block that nothing checks; pycon: tests/repo/test_reference.py
LANGUAGES = {"python", "text", "dot", "pycon"} | SHELL
TIME_LIMIT = 300  # seconds: the README trains something

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*).*$")
NOT_RUN = re.compile(r"<!--\s*not run\b:?\s*(?P<reason>.*?)\s*-->")


class Block(NamedTuple):
    """One fenced block; `not_run` is the reason given, or None for a block that runs."""

    language: str
    first_line: int  # counted from 0, of the code itself
    lines: list[str]
    not_run: str | None


def blocks_of(text: str) -> list[Block]:
    blocks: list[Block] = []
    current: Block | None = None
    indent, marker = 0, None
    for number, line in enumerate(text.splitlines()):
        fence = FENCE.match(line)
        if current and fence:
            blocks.append(current)
            current, marker = None, None
        elif current:
            current.lines.append(line[indent:])
        elif fence:
            indent = len(fence["indent"])
            current = Block(fence["language"], number + 1, [], marker)
        elif comment := NOT_RUN.search(line):
            marker = comment["reason"]
        elif line.strip():
            marker = None  # the comment stands directly before its block, or means nothing
    assert current is None, f"a block that never ends: {current}"
    return blocks


def script_of(blocks: list[Block]) -> str:
    """All blocks as one script, each on the lines it has in the page: tracebacks point there."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.first_line - len(lines)) + block.lines
    return "\n".join(lines)


def shown_outputs(blocks: list[Block]) -> list[Block]:
    """The text blocks that stand directly behind Python."""
    return [
        b
        for a, b in pairwise(blocks)
        if (a.language, b.language) == ("python", "text")
        and a.first_line + len(a.lines) + 2 == b.first_line
    ]


def page_blocks(page: Path) -> list[Block]:
    return blocks_of(page.read_text(encoding="utf-8"))


def make_goals(text: str) -> set[str]:
    """The targets of each `make ...` in shell blocks and in inline code."""
    shell = [line for b in blocks_of(text) if b.language in SHELL for line in b.lines]
    commands = [line.split("#")[0] for line in shell] + re.findall(r"`(make [^`]*)`", text)
    goals = re.findall(r"\bmake((?: +[^\s;&|]+)+)", "\n".join(commands))
    words = [word for goal in goals for word in goal.split()]
    return {word for word in words if re.fullmatch(r"[a-z][\w-]*", word)}


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    runs = [b for b in page_blocks(page) if b.language == "python" and b.not_run is None]
    script = tmp_path / page.with_suffix(".py").name
    script.write_text(script_of(runs), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,  # what an example writes, it writes here
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )
    assert result.returncode == 0, f"{page_id(page)}, same line numbers:\n{result.stderr}"
    printed = result.stdout
    for shown in shown_outputs(page_blocks(page)):
        before, found, printed = printed.partition("\n".join(shown.lines) + "\n")
        where = f"{page_id(page)}:{shown.first_line + 1}"
        assert found, f"{where} shows what is not printed:\n{before}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_blocks_not_run_say_why(page: Path) -> None:
    for block in page_blocks(page):
        where = f"{page_id(page)}:{block.first_line + 1}"
        assert block.not_run != "", f"{where}: give a reason: <!-- not run: the reason -->"
        if block.not_run is not None:
            print(f"{where} not run: {block.not_run}")  # pytest -rP shows the list
            compile("\n".join(block.lines), where, "exec")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_blocks_are_of_a_known_language(page: Path) -> None:
    for block in page_blocks(page):
        assert block.language in LANGUAGES, f"{page_id(page)}:{block.first_line}: {block.language}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    assert make_goals(page.read_text(encoding="utf-8")) <= targets


def test_ci_runs_what_the_readme_says() -> None:
    command = "make check test"
    assert command in (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")


def test_extraction_itself() -> None:
    page = "a\n```python\nx = 1\n```\n<!-- not run: no GPU -->\n\n  ```python\n  y\n  ```\n"
    first, second = blocks_of(page)
    assert first == Block("python", 2, ["x = 1"], None)
    assert second == Block("python", 7, ["y"], "no GPU")
    assert script_of([first, second]).splitlines()[7] == "y"
    assert blocks_of("<!-- not run -->\n```python\n```")[0].not_run == ""
    shell = "```sh\nA=1 make -j2 demo X=1 && make test  # make tea\n```\nor `make check bench`"
    assert make_goals(shell) == {"demo", "test", "check", "bench"}
