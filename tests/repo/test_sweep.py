"""A seeded part of `make sweep`, what it once found, and that it finds what it looks for."""

from __future__ import annotations

import ctypes
import json
import re
import sys
import time
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

import everygrad as eg
from devtools.sweep import fences, report, unreached
from devtools.sweep.branches import BACKENDS, ROOT, Ran
from devtools.sweep.cases import checked, drawn, section_of
from devtools.sweep.compare import difference
from devtools.sweep.draw import Draw, numbers_of
from devtools.sweep.kept import record, recorded
from devtools.sweep.makers.randoms import philox
from devtools.sweep.opsection import OpCase
from devtools.sweep.pool import Figures, Plan, sweep
from devtools.sweep.problem import LAYOUTS, Given, Problem
from devtools.sweep.registry import SECTIONS, Context
from everygrad.backends.cpu.kernels import run_work

CASES = {"cpu": 8, "webgpu": 2, "cuda": 8}  # of each section
SECONDS = {"cpu": 30.0, "webgpu": 20.0, "cuda": 60.0}  # for all sections together
START = 20_261_116


# networks take seconds each: test_networks has two
@pytest.mark.parametrize("section", [s for s in SECTIONS if s != "networks"])
def test_a_seeded_part_of_every_section(section: str, device: str) -> None:
    kind = device.split(":")[0]
    if not section_of(section).serves(device):
        pytest.skip(f"{device} has nothing of {section}")
    context = Context(device, 1 << 15)
    begun, count = time.monotonic(), 0
    for name, seed, case in islice(drawn([section], START, context), CASES[kind]):
        outcome = checked(name, seed, case)
        assert not outcome.differences, outcome.title
        count += 1
        if time.monotonic() - begun > SECONDS[kind] / len(SECTIONS):
            break  # a busy machine: a sweep does more
    assert count > 0


def test_what_was_found_once_is_right_now(device: str) -> None:
    kind = device.split(":")[0]
    wrong = []
    for kept in recorded():
        if kept.pop("device") == kind:
            case = section_of(kept["section"]).again(kept, Context(device, 1 << 21))
            wrong += [(case.title(), text) for text in case.check()]
    assert not wrong


# --- the harness itself --------------------------------------------------------------------------


@pytest.mark.parametrize("section", SECTIONS)
def test_a_case_is_drawn_again_from_its_seed_and_from_what_was_kept(section: str) -> None:
    context = Context("cpu", 1 << 12)
    for seed in range(5):
        first, second = (section_of(section).draw(seed, context) for _ in range(2))
        kept = json.loads(json.dumps(first.kept()))
        third = section_of(section).again(kept, context)
        assert first.op == second.op == third.op
        if isinstance(first, OpCase):
            lists = [c.problem.inputs for c in (first, second, third)]
            for a, b, c in zip(*lists, strict=True):
                assert a.layout == b.layout == c.layout
                assert a.array.tobytes() == b.array.tobytes() == c.array.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_a_view_of_its_memory(layout: str) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    if layout == "repeated":
        array = np.broadcast_to(array[:1], array.shape).copy()
    g = Given(array, layout)
    ours = g.view(eg.tensor(g.memory), eg.permute_dims, lambda t: t[..., ::-1], eg.broadcast_to)
    assert np.array_equal(ours.numpy(), array)
    assert ours.numpy().strides != array.strides or layout == "offset"
    flip = lambda t: torch.flip(t, (-1,))  # noqa: E731
    theirs = g.view(torch.from_numpy(g.memory), torch.permute, flip, torch.broadcast_to)
    assert np.array_equal(theirs.numpy(), array)


def test_one_wrong_element_is_seen_however_small_it_is_beside_the_others() -> None:
    want = np.array([1e6, 1e-3, 0.0, np.nan])
    scale = np.abs(want)
    got = want.astype(np.float32)
    assert difference(got, want, scale, "sums", "float32") is None
    for place, value in ((0, 1e6 + 20), (1, 1.1e-3), (2, 1e-9), (3, 0.0)):
        wrong = got.copy()
        wrong[place] = value
        found = difference(wrong, want, scale, "sums", "float32")
        assert found is not None
        assert f"at ({place},)" in found
    assert difference(-got[2:3], want[2:3], None, "exact", "float32")
    assert difference(-got[2:3], want[2:3], None, "exact", "float32", signs=False) is None
    assert difference(got[:2], want, scale, "sums", "float32")
    inf = np.full(1, np.inf, np.float16)
    assert difference(inf, np.full(1, 9e4), np.full(1, 9e4), "sums", "float16") is None
    assert difference(inf, np.full(1, 9e3), np.full(1, 9e3), "sums", "float16")


def test_a_wrong_op_a_wrong_gradient_and_an_exception_are_all_found() -> None:
    draw = Draw(3, "cpu", (), 100)
    x = Given(np.linspace(1, 2, 5, dtype=np.float32))

    def found(ours: object) -> list[str]:
        return OpCase("test", draw, Problem((x,), ours, torch.exp), "cpu").check()

    assert not found(eg.exp)
    assert any("result 0" in text for text in found(lambda t: eg.exp(t) * 1.0001))
    assert any("gradient 0" in text for text in found(lambda t: eg.exp(t.detach()) + 0 * t))

    def raises(t: eg.Tensor) -> eg.Tensor:
        raise ZeroDivisionError("planted")

    assert all("planted" in text for text in found(raises))
    assert len(found(raises)) >= 2  # eager and compiled


def test_fences_see_what_is_written_outside() -> None:
    with fences.around("cpu") as fence:
        array = run_work.empty((5,), np.dtype(np.float32))
        array[:] = 1
        assert not fence.broken()
        array = run_work.empty((5,), np.dtype(np.float32))
        beyond = ctypes.c_float.from_address(array.ctypes.data + 20)
        beyond.value += 0.0  # -0.0 becomes 0.0
        assert fence.broken() == ["wrote 1 bytes behind an array of 20 bytes"]
    assert run_work.empty is not fence.empty


def test_crashes_and_hangs_are_noted_and_the_sweep_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    say = "import json, os, time; f = lambda **k: print(json.dumps(k), flush=True)"
    kept = "kept={'section': 's', 'op': 'o'}, title='t'"
    ends = {0: "os.abort()", 1: "time.sleep(60)", 2: "f(done=2, differences=[])"}

    def command(plan: Plan, device: str, processor: str, start: int, count: int) -> list[str]:
        return [sys.executable, "-c", f"{say}; f(begun={start}, {kept}); {ends[start]}"]

    monkeypatch.setattr("devtools.sweep.pool._command", command)
    told: list[object] = []
    figures = sweep(Plan("cpu", [], 0, 1, cases=3, patience=2.0), told.append)
    assert figures.cases == {"s": 3}
    assert [f.differences[0][:5] for f in figures.failures] == ["the p", "hangs"]
    assert len(told) == 2


def test_cases_are_kept_once_and_the_page_has_a_part_for_each_device(tmp_path: Path) -> None:
    file, page = tmp_path / "kept.jsonl", tmp_path / "SWEEP.md"
    case = {"section": "rows", "device": "cpu", "op": "softmax", "seed": 1, "choices": [1, [2]]}
    record(case, "differs", file)
    record(case, "differs again", file)
    assert [c["why"] for c in recorded(file)] == ["differs"]
    for device, count in (("cpu", 1), ("webgpu", 2), ("cpu", 3)):
        figures = Figures(device)
        figures.cases["rows"] = count
        report.write(device, report.figures_text(figures), page)
    text = page.read_text()
    assert text.count("## cpu") == text.count("## webgpu") == 1
    assert "| rows | 3 | 0 |" in text
    assert "| rows | 2 | 0 |" in text


def test_branches_that_no_shape_reached_are_listed_with_their_lines() -> None:
    ran = [Ran("cpu/fused/fused.py", 10, 9, 4, 3, [(1, 2), (3, -1)])]
    figures = Figures("cpu")
    assert "ran: 3 of 4" in report.figures_text(figures, ran)
    text = report.branches_text("cpu", ran, figures)
    first = (BACKENDS / "cpu" / "fused" / "fused.py").read_text().splitlines()[0]
    assert f"- cpu/fused/fused.py:1 to 2: `{first}`" in text
    assert "- cpu/fused/fused.py:3 to the end: " in text


def test_the_referees_random_bits_are_those_of_the_paper() -> None:
    """Known answers that Random123 ships with."""
    assert [hex(w) for w in philox(0, 4)] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]


@pytest.mark.parametrize("kind", ["cpu", "webgpu", "cuda"])
def test_every_number_that_a_generator_declares_is_drawn_around_by_a_section(kind: str) -> None:
    known = numbers_of(kind)
    drawn_by = {g for s in SECTIONS for g in section_of(s).generators}
    found = {e.generator for e in known}
    assert found <= drawn_by, found - drawn_by
    assert len([e for e in known if e.device == kind]) > 20
    assert all(e.value > 0 for e in known)


def test_what_no_shape_reaches_is_declared_by_lines_that_exist() -> None:
    files = {str(p.relative_to(BACKENDS)): p.read_text() for p in BACKENDS.rglob("*.py")}
    assert len({*unreached.ROWS}) == len(unreached.ROWS)
    for row in unreached.ROWS:
        lines = [
            line for name, text in files.items() if fnmatch(name, row.files)
            for at, line in enumerate(text.splitlines(), 1) if re.search(row.line, line.strip())
            and (not row.inside or re.fullmatch(row.inside, unreached.function_at(name, at)))
        ]  # fmt: skip
        assert lines, row
    named = re.findall(r"tests/[\w/]+", " ".join(row.reason for row in unreached.ROWS))
    assert len(named) > 5
    for name in named:  # a test that is said to go there
        assert (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file(), name
    assert all(name in files for names in unreached.OTHERS.values() for name in names)


def test_branches_with_a_reason_are_counted_and_the_others_listed() -> None:
    untaken = [
        report.Untaken("cpu/gemm/gemm_tile.py", 35, 36, 'if has("neon"):'),
        report.Untaken("cpu/gemm/gemm_tile.py", 99, -1, "if a < b:"),
    ]
    text = report.untaken_text("cpu", untaken)
    assert f"| 1 | {unreached.MACHINE} |" in text
    assert "neon" not in text
    assert "Never taken, 1:" in text
    assert "- cpu/gemm/gemm_tile.py:99 to the end: `if a < b:`" in text
