"""A run that is stopped and resumed is bit by bit the run that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import everygrad as eg
from tests.training.runs import Run, same

ROOT = Path(__file__).parents[2]


class StopAt(eg.training.Callback):
    def __init__(self, step: int) -> None:
        self.at = step

    def on_step_end(self, trainer: eg.training.Trainer, loss: Any) -> None:
        if trainer.step == self.at:
            trainer.stop("enough")


VARIANTS: dict[str, dict[str, Any]] = {
    "compiled": {},
    "eager": {"jit": False},
    "accumulated": {"accumulate": 2},
    "bfloat16": {"autocast": "bfloat16"},
    "float16": {"autocast": "float16"},
    "train metrics": {"train_metrics": True},
    "asynchronous": {"async_save": True},
    "threads": {"loading": {"num_workers": 2, "workers": "thread"}},
    "processes": {"loading": {"num_workers": 2, "persistent_workers": True}},
    "early stopping": {"callbacks": [eg.training.EarlyStopping(patience=99)]},
}


@pytest.mark.filterwarnings("ignore:Checkpoints.save")  # asynchronous ones may be passed over
@pytest.mark.parametrize("variant", VARIANTS)
def test_forty_steps_are_seventeen_and_the_rest(variant: str, tmp_path: Path) -> None:
    more = VARIANTS[variant]
    whole = Run(tmp_path / "whole", **more)
    whole.fit(steps=40)
    want = whole.everything()
    assert whole.trainer.step == 40

    stop = {**more, "callbacks": [*more.get("callbacks", []), StopAt(17)]}
    Run(tmp_path / "parts", **stop).fit(steps=40)
    eg.manual_seed(99)  # what the process did meanwhile makes no difference
    rest = Run(tmp_path / "parts", seed=99, **more)
    rest.fit(steps=40, resume=True)
    same(rest.everything(), want)
    for run in (whole, rest):
        run.loader.close()
    files = [
        (tmp_path / part / "log.jsonl").read_text().splitlines() for part in ("whole", "parts")
    ]
    assert len(files[0]) == len(files[1])


@pytest.mark.parametrize("stop", [10, 13, 20])  # the end of an epoch, the middle, another end
def test_epochs(stop: int, tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole", scheduler_every="epoch")
    whole.fit(epochs=4)
    Run(tmp_path / "parts", scheduler_every="epoch", callbacks=[StopAt(stop)]).fit(epochs=4)
    rest = Run(tmp_path / "parts", seed=1, scheduler_every="epoch")
    rest.fit(epochs=4, resume=True)
    got, want = rest.everything(), whole.everything()
    rows = got.pop("rows"), want.pop("rows")
    same(got, want)
    ends = [[row["epoch_loss"] for row in some if "epoch_loss" in row] for some in rows]
    assert ends[0] == ends[1]
    assert len(ends[0]) == rest.trainer.epoch == 4


def test_by_more_steps(tmp_path: Path) -> None:
    """fit(steps=17) and then fit(steps=40): the validation at the end of the first is an extra row,
    and changes nothing else."""
    whole = Run()
    whole.fit(steps=40)
    Run(tmp_path).fit(steps=17)
    rest = Run(tmp_path, seed=1)
    rest.fit(steps=40, resume=True)
    got, want = rest.everything(), whole.everything()
    extra = [row for row in got.pop("rows") if row["step"] == 17]
    del want["rows"]
    same(got, want)
    assert len(extra) == 1
    assert "val_loss" in extra[0]


def test_a_second_fit_goes_on() -> None:
    whole = Run()
    whole.fit(steps=30)
    want = whole.everything()
    parts = Run()
    parts.fit(steps=13)
    parts.fit(steps=30)
    got = parts.everything()
    assert [row["step"] for row in got.pop("rows") if row["step"] == 13]
    del want["rows"]
    same(got, want)


def test_a_list_of_batches_is_gone_through_again(tmp_path: Path) -> None:
    batches = list(Run().loader)

    def run(folder: Path | None, **more: Any) -> Run:
        made = Run(folder, **more)
        made.loader = batches
        return made

    whole = run(None)
    whole.fit(steps=25)
    run(tmp_path, callbacks=[StopAt(14)]).fit(steps=25)
    rest = run(tmp_path, seed=3)
    rest.fit(steps=25, resume=True)
    same(rest.everything(), whole.everything())


def test_resume_of_nothing_begins(tmp_path: Path) -> None:
    first = Run(tmp_path / "a")
    first.fit(steps=5, resume=True)
    got = first.everything()
    second = Run(None)
    second.fit(steps=5)
    same(got, second.everything())


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    Run(tmp_path).fit(steps=3)
    with pytest.raises(
        eg.errors.ArgumentError, match="has checkpoints of another run, up to step-"
    ):
        Run(tmp_path).fit(steps=3)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1


def test_resume_of_a_finished_run_does_nothing(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.fit(steps=6)
    again = Run(tmp_path, seed=1)
    again.fit(steps=6, resume=True)
    same(again.everything(), first.everything())


def test_damaged_checkpoints_are_passed_over(tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole")
    whole.fit(steps=20)
    Run(tmp_path / "parts", save_every=3, keep_last=3, callbacks=[StopAt(14)]).fit(steps=20)
    newest = sorted((tmp_path / "parts/checkpoints").glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    rest = Run(tmp_path / "parts", seed=1)
    with pytest.warns(UserWarning, match="passed over"):
        rest.fit(steps=20, resume=True)
    same(rest.everything(), whole.everything())
    for path in (tmp_path / "parts/checkpoints").glob("*.safetensors"):
        path.write_bytes(b"nothing")
    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(eg.errors.MissingFileError, match="none is whole"),
    ):
        Run(tmp_path / "parts").fit(steps=20, resume=True)


# --- Ctrl-C --------------------------------------------------------------------------------------

SCRIPT = """
    import sys, os, time, signal
    from pathlib import Path
    import everygrad as eg
    from tests.training.runs import Run

    class Tell(eg.training.Callback):
        def on_step_end(self, trainer, loss):
            print("step", trainer.step, flush=True)
            time.sleep(float(sys.argv[2]))

    run = Run(Path(sys.argv[1]), callbacks=[Tell()])
    before = signal.getsignal(signal.SIGINT)
    try:
        run.fit(steps=40)
    finally:
        assert signal.getsignal(signal.SIGINT) is before
    print("stopped", run.trainer.stopped, run.trainer.step, flush=True)
"""


def started(folder: Path, pause: float) -> subprocess.Popen[str]:
    code = textwrap.dedent(SCRIPT)
    command = [sys.executable, "-c", code, str(folder), str(pause)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == text:
            return
    raise AssertionError(f"no {text!r}: {process.stderr.read() if process.stderr else ''}")


def test_an_interrupt_saves_and_stops(tmp_path: Path) -> None:
    process = started(tmp_path, 0.05)
    wait_for(process, "step 13")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "stopped interrupt" in out
    assert "stops behind this step and saves" in err
    assert list((tmp_path / "checkpoints").glob("*.safetensors"))
    whole = Run()
    whole.fit(steps=40)
    rest = Run(tmp_path, seed=2)
    rest.fit(steps=40, resume=True)
    same(rest.everything(), whole.everything())


def test_a_second_interrupt_stops_now(tmp_path: Path) -> None:
    process = started(tmp_path, 30.0)  # the step does not end by itself
    wait_for(process, "step 1")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    for line in process.stderr:
        if "again to stop now" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
