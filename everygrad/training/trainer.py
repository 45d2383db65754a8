"""Trainer: the loop around a step, its validation, checkpoints and logs. Optional, and small."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError, MissingFileError
from everygrad.io.checkpoints import Checkpoints, load_latest
from everygrad.io.loading import load
from everygrad.nn.module import Module
from everygrad.ops.random import generators
from everygrad.optim.lr_scheduler import ReduceLROnPlateau
from everygrad.optim.optimizer import Optimizer
from everygrad.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from everygrad.training import plots as plotting, settings
from everygrad.training.interrupts import Interrupts
from everygrad.training.logs import CSVLog, JSONLinesLog, Log, TensorBoardLog
from everygrad.training.loop import Loop
from everygrad.training.lr_finder import Finding, find_lr
from everygrad.training.metrics import Mean
from everygrad.training.run_state import RunState
from everygrad.training.step import Parts, eval_step, moved, size_of, train_step

_INTERRUPTED = b"\ninterrupt: stops behind this step and saves; again to stop now\n"


class Trainer:
    """Trains a model: epochs or steps, validation, checkpoints, logs, resume.

    A batch is a tuple of inputs with the target last: `loss(model(*inputs), target)`. Without a
    `loss` the model gives the loss itself, `model(*batch)` or, of a dict, `model(**batch)`. For
    anything else override `compute`.

    scheduler        stepped after each epoch, or after each step: `scheduler_every="step"`
    metrics          of `eg.training.metrics`, by name, of the validation; with
                     `train_metrics=True` of training too
    accumulate       batches for one step of the optimiser, whose gradients are added up
    autocast         "bfloat16" or "float16", which brings a `scaler`
    clip_norm        the largest norm of all gradients together; clip_value that of each number
    ema              the decay of an average of the weights, which validation then uses
    jit              compile the whole step: forward, backward, clipping, optimiser, EMA
    folder           where checkpoints, logs and pictures go; without one nothing is written
    save_every       steps between checkpoints, beside one at the end of each epoch; `keep_last`
                     and `keep_best` of them stay, the best by `monitor` and `mode`;
                     `async_save` writes them beside the training
    logs             any of "csv", "jsonl", "tensorboard", or Logs
    plots            curves at the end; by default if there is a folder and matplotlib
    progress         "auto" (a bar in a terminal, lines elsewhere), "bar", "lines", "none"

    The first Ctrl-C saves and stops behind the current step, the second stops now.

    >>> import everygrad as eg
    >>> x = eg.randn((64, 2))
    >>> data = eg.data.DataLoader(eg.data.TensorDataset(x, x.sum(axis=1, keepdims=True)), 16)
    >>> model = eg.nn.Linear(2, 1)
    >>> optimizer = eg.optim.AdamW(model.parameters(), lr=0.1)
    >>> trainer = eg.training.Trainer(model, optimizer, eg.nn.MSELoss(), progress="none")
    >>> history = trainer.fit(data, epochs=2)
    >>> trainer.step, [sorted(row) for row in history][-1]
    (8, ['epoch', 'epoch_loss', 'loss', 'lr', 'seconds', 'step'])
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        loss: Any = None,
        *,
        scheduler: Any = None,
        scheduler_every: str = "epoch",
        metrics: Any = None,
        train_metrics: bool = False,
        accumulate: int = 1,
        autocast: Any = None,
        scaler: Any = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        ema: float | None = None,
        jit: bool = True,
        folder: Any = None,
        save_every: int | None = None,
        keep_last: int = 2,
        keep_best: int = 1,
        monitor: str | None = None,
        mode: str = "min",
        logs: Any = None,
        log_every: int = 10,
        plots: bool | None = None,
        progress: str = "auto",
        callbacks: Sequence[Any] = (),
        async_save: bool = False,
    ) -> None:
        settings.check_kinds(model, optimizer, loss, scheduler)
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.scheduler = scheduler
        if scheduler_every == "step" and isinstance(scheduler, ReduceLROnPlateau):
            raise ArgumentError(
                'Trainer: ReduceLROnPlateau needs scheduler_every="epoch", with a number to watch'
            )
        self.scheduler_every = settings.one_of(
            "scheduler_every", scheduler_every, ("epoch", "step")
        )
        self.metrics = settings.metrics(metrics)
        self.train_metrics = bool(train_metrics)
        self.training_metrics = copy.deepcopy(self.metrics) if train_metrics else {}
        self.accumulate = settings.count("accumulate", accumulate)
        self.autocast, self.scaler = settings.precision(autocast, scaler)
        self.clip_norm = settings.positive("clip_norm", clip_norm)
        self.clip_value = settings.positive("clip_value", clip_value)
        decay = settings.ema_decay(ema)
        self.log_every = settings.count("log_every", log_every)
        self.save_every = None if save_every is None else settings.count("save_every", save_every)
        self.monitor = monitor
        self.mode = settings.one_of("mode", mode, ("min", "max"))
        self.show = settings.one_of("progress", progress, ("auto", "bar", "lines", "none"))
        self.callbacks = settings.callbacks(callbacks)
        wanted = settings.logs(logs, folder)
        self.folder = None if folder is None else Path(folder)
        if plots and not plotting.available():
            raise ImportError("Trainer: plots=True needs matplotlib: pip install matplotlib")
        if plots and folder is None:
            raise ArgumentError("Trainer: plots=True needs a folder to write to")
        self.plots = plotting.available() if plots is None else bool(plots)
        if self.save_every is not None and folder is None:
            raise ArgumentError("Trainer: save_every needs a folder to write to")
        self.compiled = bool(jit)
        self.ema: AveragedModel | None = None
        if decay is not None:
            self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.state = RunState()
        self.stopped: str | None = None
        self.logs: list[Log] = [self._log(log) for log in wanted]
        self._checkpoints: Checkpoints | None = None
        if self.folder is not None:
            self._checkpoints = Checkpoints(
                self.folder / "checkpoints",
                keep_last=keep_last,
                keep_best=keep_best,
                best=mode,
                asynchronous=async_save,
            )
        self._steps: dict[str, Any] = {}
        self._train: Any = None  # what the last fit went through

    def _log(self, wanted: Any) -> Log:
        if isinstance(wanted, Log):
            return wanted
        assert self.folder is not None
        if wanted == "csv":
            return CSVLog(self.folder / "log.csv", self._columns())
        if wanted == "jsonl":
            return JSONLinesLog(self.folder / "log.jsonl")
        return TensorBoardLog(self.folder / "tensorboard")

    def _columns(self) -> list[str]:
        """Every number that a row may have."""
        names = ["step", "epoch", "seconds", "loss", "lr"]
        names += ["grad_norm"] if self.clip_norm is not None else []
        names += ["epoch_loss", *(f"train_{m}" for m in self.metrics if self.train_metrics)]
        return [*names, "val_loss", *(f"val_{m}" for m in self.metrics)]

    # --- what a user reads or overrides ----------------------------------------------------------

    @property
    def step(self) -> int:
        """How many steps the optimiser has made."""
        return self.state.step

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return self.state.epoch

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows that were logged."""
        return self.state.history

    @property
    def best_path(self) -> Path | None:
        """The checkpoint with the best `monitor`; None if there is none."""
        return None if self._checkpoints is None else self._checkpoints.best_path()

    def compute(self, model: Any, batch: Any) -> tuple[Tensor, Any, Any]:
        """The loss of a batch, the output and the target; override it for other batches."""
        if self.loss is None:
            loss = model(**batch) if isinstance(batch, Mapping) else model(*_inputs(batch))
            return loss, None, None
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            many = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
            raise DtypeError(
                f"Trainer: a batch must be a tuple of inputs with the target last, got "
                f"{type(batch).__name__}{many}; override compute(model, batch) for others"
            )
        *inputs, target = batch
        output = model(*inputs)
        return self.loss(output, target), output, target

    def stop(self, reason: str) -> None:
        """Stop behind the current step or epoch; callbacks call it."""
        self.state.stop_reason = reason

    # --- the loop --------------------------------------------------------------------------------

    def fit(
        self,
        train: Any,
        validation: Any = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        validate_every: int | None = None,
        resume: bool = False,
    ) -> list[dict[str, Any]]:
        """Train on the batches of `train`, up to a number of epochs or of steps in all.

        A second call goes on where the first ended. `validation` is looked at after each epoch, or
        every `validate_every` steps. With `resume`
        the run goes on from the newest whole checkpoint of the folder, if there is one, and is bit
        by bit what it would have been without the interruption. Returns the rows that were logged;
        `stopped` says why the run ended early, if it did.
        """
        if (epochs is None) == (steps is None):
            raise ArgumentError(f"Trainer.fit: give epochs or steps, got {epochs=} and {steps=}")
        limit = (
            settings.count("epochs", epochs) if steps is None else settings.count("steps", steps)
        )
        if validate_every is not None:
            settings.count("validate_every", validate_every)
            if validation is None:
                raise ArgumentError("Trainer.fit: validate_every needs a validation loader")
        for name, loader in (("training", train), ("validation", validation)):
            is_there = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
            if not is_there and not (loader is None and name == "validation"):
                raise DtypeError(
                    f"Trainer.fit: the {name} loader must give batches in a loop, "
                    f"got {type(loader).__name__}"
                )
        self._refuse_other_run(resume)
        if resume:
            self._resume(train)
        elif train is not self._train:  # other data: an epoch begins
            self.state.batches = 0
        self._train = train
        self.stopped = self.state.stop_reason = None
        loop = Loop(self, train, validation, limit, steps is not None, validate_every)
        with Interrupts(lambda: os.write(2, _INTERRUPTED)) as interrupts:
            try:
                loop.run(interrupts)
            finally:
                loop.close()
                if self._checkpoints is not None:
                    self._checkpoints.wait()
                for callback in self.callbacks:
                    callback.on_fit_end(self)
        if self.plots and self.folder is not None and self.history:
            plotting.draw_history(self.history, self.folder / "curves.png")
        return self.history

    def validate(self, loader: Any, prefix: str = "val_") -> dict[str, float]:
        """The mean loss of a loader's examples and the metrics, by the averaged weights if there
        are any. Draws random numbers of its own: a training run is not changed by it."""
        model = self.model if self.ema is None else self.ema.module
        step = self._compiled(
            "eval", lambda: eval_step(model, self.compute, self.autocast, self.compiled)
        )
        mean = Mean()
        for metric in self.metrics.values():
            metric.reset()
        before, random = model.training, generators.default_generator.get_state()
        model.eval()
        try:
            for batch in loader:
                near = moved(batch, self.device())
                loss, output, target = step(near)
                mean.add(loss, size_of(near))
                for metric in self.metrics.values():
                    metric.update(output, target)
        finally:
            model.train(before)
            generators.default_generator.set_state(random)
        found = {f"{prefix}loss": mean.compute()}
        for name, metric in self.metrics.items():
            value = metric.compute()
            found[f"{prefix}{name}"] = value.tolist() if isinstance(value, Tensor) else value
        return found

    def device(self) -> str:
        """Where the model's parameters are, and batches go."""
        return next((p.device for p in self.model.parameters()), "cpu")

    def _compiled(self, name: str, make: Any) -> Any:
        """A step that is made once: what was compiled is found again by the next fit."""
        if name not in self._steps:
            self._steps[name] = make()
        return self._steps[name]

    def train_step(self, batches: list[Any]) -> tuple[Tensor, Any, list[Any]]:
        """One step of the optimiser on one or more batches."""
        step = self._compiled("train", lambda: train_step(self._parts()))
        made: tuple[Tensor, Any, list[Any]] = step(batches)
        return made

    def _parts(self) -> Parts:
        return Parts(
            *(self.model, self.optimizer, self.compute, self.autocast, self.scaler, self.ema),
            *(self.clip_norm, self.clip_value, self.train_metrics, self.compiled),
        )

    def rate(self) -> float:
        """The learning rate of the first group."""
        lr = self.optimizer.param_groups[0]["lr"]
        return float(lr.item()) if isinstance(lr, Tensor) else float(lr)

    def find_lr(self, train: Any, **settings: Any) -> Finding:
        """Learning rates against losses, from `min_lr` to `max_lr` over `steps` steps; afterwards
        model, optimiser and random numbers are what they were. See `Finding`."""
        return find_lr(self, train, **settings)

    # --- saving ----------------------------------------------------------------------------------

    def parts(self, train: Any) -> dict[str, Any]:
        """Everything that a checkpoint holds, by name."""
        held: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "random": generators.default_generator,
            "trainer": self.state,
        }
        more = {
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "ema": self.ema,
            "loader": train if _has_state(train) else None,
            "training_metrics": self.training_metrics or None,
        }
        held.update({k: v for k, v in more.items() if v is not None})
        held["callbacks"] = {
            str(i): c for i, c in enumerate(self.callbacks) if _has_state(c)
        } or None
        return {k: v for k, v in held.items() if v is not None}

    def save(self, train: Any, metric: float | None = None) -> None:
        """Write a checkpoint of the run as it stands, to go on from with `resume`."""
        if self._checkpoints is None:
            raise ArgumentError("Trainer.save: there is no folder to write to")
        self._checkpoints.save(self.step, self.parts(train), metric)
        for callback in self.callbacks:
            callback.on_checkpoint(self)

    def _refuse_other_run(self, resume: bool) -> None:
        """Refuse to begin a run where another one has left checkpoints, which it would mix with."""
        if resume or self.step or self._checkpoints is None:
            return
        there = self._checkpoints.paths()
        if there:
            raise ArgumentError(
                f"Trainer.fit: {self.folder} has checkpoints of another run, up to {there[-1].name}"
                "; give resume=True to go on with it, or another folder"
            )

    def _resume(self, train: Any) -> None:
        if self._checkpoints is None:
            raise ArgumentError("Trainer.fit: resume=True needs a folder with checkpoints")
        try:
            load_latest(self._checkpoints.folder, into=self.parts(train))
        except MissingFileError:
            if self._checkpoints.paths():  # some are there, none is whole
                raise
        for log in self.logs:
            log.rewind(self.step, self.history)

    def load_best(self) -> Path:
        """Give the model, and the average if there is one, the weights of the best checkpoint."""
        path = self.best_path
        if path is None:
            raise MissingFileError("Trainer.load_best: no checkpoint with a metric was saved")
        from_file = load(path)
        self.model.load_state_dict(from_file["model"])
        if self.ema is not None:
            self.ema.load_state_dict(from_file["ema"])
        return path


def _has_state(value: Any) -> bool:
    return all(callable(getattr(value, n, None)) for n in ("state_dict", "load_state_dict"))


def _inputs(batch: Any) -> Sequence[Any]:
    return batch if isinstance(batch, list | tuple) else (batch,)
