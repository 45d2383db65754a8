"""What a Trainer does around its steps: it learns, validates, logs, stops, and refuses by name."""

from __future__ import annotations

import csv
import io
import json
import signal
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn
from everygrad._jit.jit import Jitted
from everygrad.errors import ArgumentError, DtypeError
from everygrad.training import Trainer
from everygrad.training.progress import Progress, clock
from tests.training.runs import Run, dataset, network, same


def test_the_compiled_step_is_the_loop_people_write() -> None:
    """Against a loop by hand: the same losses and weights, bit by bit, eagerly."""
    run = Run(jit=False, ema=None)
    run.trainer.fit(run.loader, steps=15)
    eg.manual_seed(7)
    model = network()
    optimizer = eg.optim.AdamW(model.parameters(), lr=0.02)
    schedule = eg.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    loader = eg.data.DataLoader(dataset(), batch_size=10, shuffle=True, generator=eg.Generator(3))
    model.train()
    done = 0
    while done < 15:
        for x, y in loader:
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            done += 1
            if done == 15:
                break
    got, want = run.model.state_dict(), model.state_dict()
    same({k: np.asarray(v) for k, v in got.items()}, {k: np.asarray(v) for k, v in want.items()})


def test_compiled_and_eager_agree() -> None:
    losses = []
    for jit in (True, False):
        history = Run(jit=jit).fit(steps=20)
        losses.append([row["loss"] for row in history if "loss" in row])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_accumulation_is_the_larger_batch() -> None:
    """Without dropout and batch norm two halves are the whole, up to rounding."""
    x, y = dataset(64).tensors
    results = []
    for size, parts in ((32, 1), (8, 4)):
        eg.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = eg.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(
            model, optimizer, nn.CrossEntropyLoss(), accumulate=parts, progress="none"
        )
        data = eg.data.DataLoader(eg.data.TensorDataset(x, y), batch_size=size)
        trainer.fit(data, epochs=3)
        assert trainer.step == 6
        results.append(model[0].weight.detach().numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_it_learns_and_the_best_is_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, monitor="val_accuracy", mode="max", plots=True)
    history = run.fit(epochs=12)
    scores = [row["val_accuracy"] for row in history if "val_accuracy" in row]
    assert len(scores) == 12
    assert max(scores) > 0.8
    assert history[-1]["epoch_loss"] < history[2]["loss"]
    path = run.trainer.best_path
    assert path is not None
    kept = eg.load(path)
    assert kept["trainer"]["history"][-1]["val_accuracy"] == max(scores)
    run.trainer.load_best()
    assert run.trainer.validate(run.validation)["val_accuracy"] == max(scores)
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_validation_uses_the_average_and_changes_nothing() -> None:
    run = Run()
    run.fit(steps=8)
    before = run.everything()
    found = run.trainer.validate(run.validation)
    same(run.everything(), before)
    assert run.model.training
    model = run.trainer.ema.module  # type: ignore[union-attr]
    x, y = dataset(40).tensors
    model.eval()
    with eg.no_grad():
        output = model(x)
    assert found["val_loss"] == pytest.approx(nn.CrossEntropyLoss()(output, y).item(), rel=1e-5)
    assert found["val_accuracy"] == (output.argmax(axis=1) == y).numpy().mean()


def test_rows_and_logs(tmp_path: Path) -> None:
    run = Run(tmp_path, train_metrics=True, log_every=5)
    history = run.fit(epochs=2)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history
    with open(tmp_path / "log.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["step"]) for row in table] == [row["step"] for row in history]
    for row, want in zip(table, history, strict=True):
        assert {k: float(v) for k, v in row.items() if v} == {k: float(v) for k, v in want.items()}
    assert {"loss", "lr", "grad_norm", "epoch_loss", "train_accuracy", "val_accuracy"} <= set(
        history[-1] | history[0]
    )
    ends = [row for row in history if "epoch_loss" in row]
    assert [row["epoch"] for row in ends] == [1, 2]


def test_early_stopping_and_plateau() -> None:
    eg.manual_seed(0)
    model = network()
    optimizer = eg.optim.SGD(model.parameters(), lr=0.0)
    schedule = eg.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    early = eg.training.EarlyStopping(patience=2)
    trainer = Trainer(
        model, optimizer, nn.CrossEntropyLoss(), scheduler=schedule, callbacks=[early],
        progress="none",
    )  # fmt: skip
    frozen = nn.BatchNorm1d  # its statistics move even at a rate of 0: let them be
    for module in model.modules():
        if isinstance(module, frozen):
            module.momentum = 0.0
    validation = eg.data.DataLoader(dataset(40), batch_size=16)
    trainer.fit(eg.data.DataLoader(dataset(), batch_size=32), validation, epochs=50)
    assert trainer.epoch == 4  # the first is the best, then patience and one more
    assert trainer.stopped == "val_loss has not become better for 3 validations"


def test_callbacks_in_order(tmp_path: Path) -> None:
    seen: list[str] = []

    class Note(eg.training.Callback):
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("on_"):
                seen.append(name)
            return super().__getattribute__(name)

    run = Run(tmp_path, callbacks=[Note()])
    run.trainer.fit(run.loader, run.validation, epochs=1)
    steps = ["on_step_end"] * 10
    end = ["on_validation_end", "on_epoch_end", "on_checkpoint", "on_fit_end"]
    assert seen == ["on_fit_begin", "on_epoch_begin", *steps, *end]


def test_validation_every_few_steps(tmp_path: Path) -> None:
    run = Run(tmp_path)
    history = run.fit(steps=20, validate_every=6)
    assert [row["step"] for row in history if "val_loss" in row] == [6, 12, 18, 20]


def test_a_model_that_gives_its_loss(device: str) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 2)

        def forward(self, x: eg.Tensor, y: eg.Tensor) -> eg.Tensor:
            loss: eg.Tensor = nn.functional.cross_entropy(self.linear(x), y)
            return loss

    eg.manual_seed(0)
    model = Own().to(device)
    optimizer = eg.optim.SGD(model.parameters(), lr=0.5)
    trainer = Trainer(model, optimizer, clip_value=0.5, progress="none")
    history = trainer.fit(eg.data.DataLoader(dataset(), batch_size=16), epochs=4)
    losses = [row["epoch_loss"] for row in history if "epoch_loss" in row]
    assert losses[-1] < losses[0]
    batches = [{"x": x, "y": y} for x, y in eg.data.DataLoader(dataset(), batch_size=32)]
    trainer.fit(batches, epochs=6)
    assert trainer.epoch == 6


def test_other_batches_by_compute() -> None:
    class Reconstruct(Trainer):
        def compute(self, model: Any, batch: Any) -> Any:
            output = model(batch["x"])
            return ((output - batch["x"]) ** 2).mean(), output, batch["x"]

    eg.manual_seed(0)
    model = nn.Linear(6, 6)
    trainer = Reconstruct(model, eg.optim.Adam(model.parameters(), lr=0.05), progress="none")
    batches = [{"x": x} for x, _ in eg.data.DataLoader(dataset(), batch_size=32)]
    history = trainer.fit(batches, epochs=20)
    assert history[-1]["epoch_loss"] < 0.3 * history[0]["loss"]


def test_a_step_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules, validations and checkpoints in between never make a step trace again."""
    compiled = []
    make = Jitted.compile

    def counted(self: Any, *args: Any) -> Any:
        compiled.append(self)
        return make(self, *args)

    monkeypatch.setattr(Jitted, "compile", counted)
    run = Run()
    run.fit(steps=11)
    first = len(compiled)
    # of training, batches of 10 and the 6 that are left; of validation, of 16 and of 8
    assert first <= 6
    run.fit(steps=60, validate_every=9)
    assert len(compiled) == first


# --- the learning-rate finder --------------------------------------------------------------------


def test_find_lr_puts_everything_back(tmp_path: Path) -> None:
    run = Run(ema=None)
    run.fit(steps=3)
    before, loader = run.everything(), run.loader.state_dict()
    found = run.trainer.find_lr(run.loader, min_lr=1e-5, max_lr=10.0, steps=40)
    same(run.everything(), before)
    assert run.loader.state_dict() == loader
    assert found.rates[0] == pytest.approx(1e-5)
    assert len(found.rates) == len(found.losses) <= 40
    assert found.rates[0] < found.suggestion < found.rates[-1]
    assert found.plot(tmp_path / "lr.png").stat().st_size > 3000
    run.fit(steps=20)
    other = Run(ema=None)
    other.fit(steps=3)
    other.fit(steps=20)
    same(run.everything(), other.everything())


def test_find_lr_finds_rates_that_learn() -> None:
    """Of least squares, whose loss diverges above twice the inverse of the largest curvature."""
    eg.manual_seed(0)
    x = eg.randn((64, 4))
    curvature = float(np.linalg.eigvalsh(np.asarray(x.mT @ x) / 32 / 1).max())
    model = nn.Linear(4, 1, bias=False)
    optimizer = eg.optim.SGD(model.parameters(), lr=1.0)
    trainer = Trainer(model, optimizer, nn.MSELoss(), progress="none")
    batches = [(x, x.sum(axis=1, keepdims=True))]
    found = trainer.find_lr(batches, min_lr=1e-6, max_lr=100.0, steps=200)
    assert 1e-4 < found.suggestion < 2 / curvature
    assert found.rates[-1] > 2 / curvature
    assert optimizer.param_groups[0]["lr"] == 1.0


# --- progress, interrupts, TensorBoard -----------------------------------------------------------


def test_a_plain_line_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "EVERY", 0.0)
    stream = io.StringIO()
    progress = Progress(10, 4, "auto", stream)
    progress.advance({"loss": 0.51234, "lr": 0.001})
    line = stream.getvalue().strip()
    assert line.startswith("step 5/10, loss 0.5123, lr 0.001, ")
    assert "steps/s" in line
    assert line.endswith(" left")
    assert (clock(62), clock(3723)) == ("01:02", "1:02:03")


def test_a_bar_in_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(10, 0, "auto", stream)
    for _ in range(3):
        progress.advance({"loss": 0.5})
    progress.say("epoch 1")
    progress.close()
    text = stream.getvalue()
    assert "3/10" in text
    assert "epoch 1" in text
    assert "loss 0.5" in text


def test_quiet() -> None:
    stream = io.StringIO()
    progress = Progress(10, 0, "none", stream)
    progress.advance()
    progress.say("epoch 1")
    assert stream.getvalue() == ""


def test_interrupts_only_in_the_main_thread() -> None:
    seen = []
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        run = Run()
        run.fit(steps=2)
        seen.append((run.trainer.step, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(2, before)]
    Run().fit(steps=1)
    assert signal.getsignal(signal.SIGINT) is before


def test_tensorboard_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch.utils.tensorboard", "tensorboardX"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install tensorboardX"):
        Run(tmp_path, logs="tensorboard")


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int | None = None) -> None:
            written.append((folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append("closed")

    fake = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)  # type: ignore[arg-type]
    run = Run(tmp_path, logs=["tensorboard"])
    history = run.fit(steps=5)
    assert written[0] == (str(tmp_path / "tensorboard"), None)
    assert written[-1] == "closed"
    assert ("loss", history[0]["loss"], 4) in written
    written.clear()
    Run(tmp_path, logs=["tensorboard"]).fit(steps=10, resume=True)
    assert written[0] == (str(tmp_path / "tensorboard"), 6)


# --- refusals ------------------------------------------------------------------------------------


def made(**more: Any) -> Trainer:
    model = nn.Linear(6, 2)
    return Trainer(
        model, eg.optim.SGD(model.parameters(), lr=0.1), **{"loss": nn.CrossEntropyLoss(), **more}
    )


def fitted(*args: Any, **how: Any) -> Any:
    return made(progress="none").fit(*args, **how)


ANY: Any = Trainer  # what no type checker lets pass

REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ANY(1, None), DtypeError, "Trainer: model must be a Module, got int"),
    (lambda: ANY(nn.Linear(1, 1), 0.1), DtypeError, "optimizer must be an Optimizer, got float"),
    (lambda: made(loss=3), DtypeError, "Trainer: loss must be a function of (output, target)"),
    (lambda: made(scheduler=3), DtypeError, "Trainer: scheduler must be of eg.optim.lr_scheduler"),
    (lambda: made(scheduler_every="batch"), ArgumentError, "scheduler_every must be one of"),
    (lambda: made(accumulate=0), ArgumentError, "accumulate must be an integer of at least 1"),
    (lambda: made(clip_norm=-1.0), ArgumentError, "Trainer: clip_norm must be above 0, got -1.0"),
    (lambda: made(clip_value=0), ArgumentError, "Trainer: clip_value must be above 0, got 0"),
    (lambda: made(ema=1.0), ArgumentError, "ema must be a decay from 0 to below 1, got 1.0"),
    (lambda: made(autocast="float32"), ArgumentError, "Trainer: autocast must be one of"),
    (lambda: made(scaler=eg.optim.GradScaler()), ArgumentError, "a scaler is for autocast"),
    (lambda: made(mode="best"), ArgumentError, "Trainer: mode must be one of 'min', 'max'"),
    (lambda: made(progress="yes"), ArgumentError, "Trainer: progress must be one of"),
    (lambda: made(metrics=[3]), DtypeError, "metrics must be of eg.training.metrics, got int"),
    (lambda: made(callbacks=[3]), DtypeError, "Trainer: callbacks must be Callbacks, got int"),
    (lambda: made(logs="xml"), ArgumentError, "Trainer: logs must be one of"),
    (lambda: made(logs="csv"), ArgumentError, "Trainer: logs='csv' needs a folder to write to"),
    (lambda: made(plots=True), ArgumentError, "Trainer: plots=True needs a folder to write to"),
    (lambda: made(save_every=5), ArgumentError, "Trainer: save_every needs a folder"),
    (lambda: fitted([]), ArgumentError, "Trainer.fit: give epochs or steps"),
    (lambda: fitted([], epochs=1, steps=1), ArgumentError, "Trainer.fit: give epochs or steps"),
    (lambda: fitted([], epochs=0), ArgumentError, "epochs must be an integer of at least 1, got 0"),
    (lambda: fitted([], epochs=1), ArgumentError, "the training loader gave no batch in epoch 1"),
    (
        lambda: fitted(iter([(eg.zeros((2, 6)), eg.tensor([0, 1]))]), epochs=2),
        ArgumentError,
        "gave no batch in epoch 2; a generator serves once",
    ),
    (lambda: fitted([eg.zeros((2, 6))], steps=1), DtypeError, "a batch must be a tuple of inputs"),
    (lambda: fitted([(eg.zeros((2, 6)),)], steps=1), DtypeError, "target last, got tuple of 1"),
    (lambda: fitted(None, steps=1), DtypeError, "the training loader must give batches in a loop"),
    (lambda: fitted([], epochs=1, resume=True), ArgumentError, "resume=True needs a folder"),
    (lambda: fitted([], epochs=1, validate_every=2), ArgumentError, "validate_every needs a"),
    (lambda: made().find_lr([], min_lr=1.0, max_lr=0.1), ArgumentError, "0 < min_lr < max_lr"),
    (lambda: eg.training.EarlyStopping(patience=-1), ArgumentError, "patience must be an integer"),
    (lambda: eg.training.Trainr, AttributeError, "the nearest is 'Trainer'"),
    (lambda: eg.training.CSVLog("x.csv", ["loss"]), ArgumentError, 'columns must have "step"'),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSALS, ids=lambda r: r[2][:50])
def test_refused_by_name(row: tuple[Callable[[], Any], type[Exception], str]) -> None:
    call, error, message = row
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
