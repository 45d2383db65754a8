"""The loop of a Trainer: epochs, steps, rows, validation, checkpoints, and why it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.ops.shape.joining import stack
from everygrad.optim.lr_scheduler import ReduceLROnPlateau
from everygrad.training.interrupts import Interrupts
from everygrad.training.progress import Progress, shown
from everygrad.training.run_state import add, mean
from everygrad.training.step import moved

if TYPE_CHECKING:
    from everygrad.training.trainer import Trainer

INTERRUPT = "interrupt"


class Loop:
    """One call of `Trainer.fit`.

    What happens behind a step, in this order: the scheduler, a row, a validation, a checkpoint.
    So a checkpoint holds every row up to its step, and nothing of a step is done twice.
    """

    def __init__(
        self,
        trainer: Trainer,
        train: Any,
        validation: Any,
        limit: int,
        by_steps: bool,
        validate_every: int | None,
    ) -> None:
        self.trainer, self.train, self.validation = trainer, train, validation
        self.limit, self.by_steps, self.validate_every = limit, by_steps, validate_every
        self._pending: list[tuple[Tensor, Any]] = []  # losses and norms that were not read yet
        self._since = time.perf_counter()
        self._validated = -1  # the step of the last validation
        self._saved = -1
        self._device = trainer.device()
        self._iterator: Any = None
        self._stateful = callable(getattr(train, "load_state_dict", None))
        self.progress = Progress(self._total(), trainer.step, trainer.show)

    def _total(self) -> int | None:
        """Steps in all, if that is known."""
        if self.by_steps:
            return self.limit
        try:
            per_epoch = -(-len(self.train) // self.trainer.accumulate)
        except TypeError:
            return None
        return per_epoch * self.limit

    def _done(self) -> bool:
        state = self.trainer.state
        return (state.step if self.by_steps else state.epoch) >= self.limit

    def run(self, interrupts: Interrupts) -> None:
        """Train until the limit, a callback or an interrupt says stop."""
        trainer, state = self.trainer, self.trainer.state
        trainer.model.train()
        self._tell("on_fit_begin")
        while not self._done():
            whole = self._epoch(interrupts)
            if whole:
                self._end_epoch()
            if interrupts.requested:
                trainer.stopped = INTERRUPT
            elif state.stop_reason is not None:
                trainer.stopped = state.stop_reason
            if trainer.stopped is not None:
                break
            if not whole:
                self._end_of_steps()
        if trainer.stopped is not None:
            self._save(None)  # with the sums of the row that is not complete
            self.progress.say(f"stopped at step {state.step}: {trainer.stopped}")

    # --- an epoch --------------------------------------------------------------------------------

    def _epoch(self, interrupts: Interrupts) -> bool:
        """The rest of an epoch; False if it ended before the loader did."""
        trainer, state = self.trainer, self.trainer.state
        if not state.batches:
            state.epoch_sum = [0.0, 0]
            for metric in trainer.training_metrics.values():
                metric.reset()
            self._tell("on_epoch_begin")
        for group in self._groups():
            loss, norm, pairs = trainer.train_step(group)
            state.step += 1
            state.batches += len(group)
            self._pending.append((loss, norm))
            for output, target in pairs:
                for metric in trainer.training_metrics.values():
                    metric.update(output, target)
            self._after_step(loss)
            if interrupts.requested or state.stop_reason is not None:
                return False
            if self.by_steps and self._done():
                return False
        if not state.batches:
            raise ArgumentError(
                f"Trainer.fit: the training loader gave no batch in epoch {state.epoch + 1}; a "
                "generator serves once, a DataLoader or a list as often as asked"
            )
        return True

    def _groups(self) -> Iterator[list[Any]]:
        """The batches of each step; of a loader that keeps its place, from there on."""
        if self._stateful and self.trainer.state.batches:
            # the next pass is to go on where the last one was left
            self.train.load_state_dict(self.train.state_dict())
        self._iterator = iter(self.train)
        # what has no state of its own is gone through again up to where the run stands
        start = 0 if self._stateful else self.trainer.state.batches
        batches = islice(self._iterator, start, None)
        while group := [moved(b, self._device) for b in islice(batches, self.trainer.accumulate)]:
            yield group

    def _after_step(self, loss: Tensor) -> None:
        trainer, state = self.trainer, self.trainer.state
        rate = trainer.rate()
        if trainer.scheduler is not None and trainer.scheduler_every == "step":
            trainer.scheduler.step()
        self._tell("on_step_end", loss)
        if state.step % trainer.log_every == 0:
            row = self._row({"lr": rate})
            self.progress.advance({k: row[k] for k in ("loss", "lr") if k in row})
        else:
            self.progress.advance()
        if self.validate_every is not None and state.step % self.validate_every == 0:
            row = self._validate({})
            self._tell("on_validation_end", row)
            self._save(self._monitored(row))
        if trainer.save_every is not None and state.step % trainer.save_every == 0:
            self._save(None)

    def _end_epoch(self) -> None:
        trainer, state = self.trainer, self.trainer.state
        self._read()
        state.epoch += 1
        state.batches = 0
        more: dict[str, Any] = {"lr": trainer.rate(), "epoch_loss": mean(state.epoch_sum)}
        for name, metric in trainer.training_metrics.items():
            value = metric.compute()
            more[f"train_{name}"] = value.tolist() if isinstance(value, Tensor) else value
        if self.validation is not None and self.validate_every is None:
            row = self._validate(more)
            self._tell("on_validation_end", row)
        else:
            row = self._row(more)
        if trainer.scheduler is not None and trainer.scheduler_every == "epoch":
            if isinstance(trainer.scheduler, ReduceLROnPlateau):
                trainer.scheduler.step(self._needed(row))
            else:
                trainer.scheduler.step()
        self._tell("on_epoch_end", row)
        self._save(self._monitored(row))
        self.progress.say(f"epoch {state.epoch}: {self._shown(row)}")

    def _end_of_steps(self) -> None:
        """The last step was made in the middle of an epoch."""
        row = None
        if self.validation is not None and self._validated != self.trainer.step:
            row = self._validate({})
        else:
            self._row({})
        self._save(None if row is None else self._monitored(row))

    # --- numbers ---------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the losses of the steps since the last time: one wait for all of them."""
        state = self.trainer.state
        if not self._pending:
            return
        losses = stack([loss for loss, _ in self._pending]).tolist()
        norms = [norm for _, norm in self._pending if norm is not None]
        for value in losses:
            add(state.window, value)
            add(state.epoch_sum, value)
        for value in stack(norms).tolist() if norms else ():
            add(state.norms, value)
        self._pending = []

    def _row(self, more: dict[str, Any]) -> dict[str, Any]:
        """Log what has come together since the last row, and the numbers in `more`."""
        trainer, state = self.trainer, self.trainer.state
        self._read()
        now = time.perf_counter()
        state.seconds, self._since = state.seconds + now - self._since, now
        row = {"step": state.step, "epoch": state.epoch, "seconds": round(state.seconds, 3)}
        if state.window[1]:
            row["loss"] = mean(state.window)
            row["lr"] = more.pop("lr", trainer.rate())
        if state.norms[1]:
            row["grad_norm"] = mean(state.norms)
        row.update(more)
        state.window, state.norms = [0.0, 0], [0.0, 0]
        if len(row) > 3:  # more than the time
            state.history.append(row)
            for log in trainer.logs:
                log.write(row)
        return row

    def _validate(self, more: dict[str, Any]) -> dict[str, Any]:
        self._validated = self.trainer.step
        row = self._row({**more, **self.trainer.validate(self.validation)})
        self.trainer.model.train()
        return row

    def _monitored(self, row: dict[str, Any]) -> float | None:
        """The number by which the best checkpoint is found."""
        trainer = self.trainer
        if trainer.monitor is not None:
            return self._needed(row)
        value = row.get("val_loss" if self.validation is not None else "epoch_loss")
        return None if value is None else float(value)

    def _needed(self, row: dict[str, Any]) -> float:
        name = self.trainer.monitor or ("epoch_loss" if self.validation is None else "val_loss")
        if not isinstance(row.get(name), int | float):
            raise ArgumentError(
                f"Trainer: no number {name!r} to monitor among {', '.join(row)}; choose one with "
                "monitor="
            )
        return float(row[name])

    def _shown(self, row: dict[str, Any]) -> str:
        return shown(
            {k: v for k, v in row.items() if k not in ("epoch", "step") and not isinstance(v, list)}
        )

    # --- the rest --------------------------------------------------------------------------------

    def _save(self, metric: float | None) -> None:
        trainer = self.trainer
        if trainer.folder is None:
            return
        if metric is None and self._saved == trainer.step:
            return  # it is there, perhaps with a metric
        self._read()
        self._saved = trainer.step
        trainer.save(self.train, metric)

    def _tell(self, event: str, *more: Any) -> None:
        for callback in self.trainer.callbacks:
            getattr(callback, event)(self.trainer, *more)

    def close(self) -> None:
        """Give back what the run holds: workers of the loader, logs, the bar."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
        for log in self.trainer.logs:
            log.close()
        self.progress.close()
