"""Command encoding: commands are recorded into passes, finished, and submitted exactly once.

A signal handler may raise after any call. The state must then be known: a pass that was begun
without a note is never ended, and an encoder that was finished without a note loses its commands.
So each change of state is one native call that also notes it in a list, and `submit` continues
where it was interrupted.
"""

from __future__ import annotations

from typing import Any

from everygrad.backends.webgpu.driver.wgpu_native import NativeCalls


class Encoder:
    """Records passes and copies, in order."""

    def __init__(self, device: Any, calls: NativeCalls) -> None:
        self.calls = calls
        self.pipeline: Any = None  # the pipeline that is set in the pass
        self._pass: list[Any] = []  # the open pass, as native calls take it
        self._timed: Any = None  # an open pass with timestamps
        self._finished: list[Any] = []
        self._submitted: list[Any] = []
        self.raw = device.create_command_encoder()  # for copies, outside passes

    def within_pass(self, clock: Any) -> Any:
        """The open pass, as native calls take it; begins one if there is none."""
        if not self._pass:
            self.pipeline = None
            if clock is None:
                self.calls.begin(self.raw, self._pass)
            else:
                self._timed = self.raw.begin_compute_pass(timestamp_writes=clock.writes())
                self._pass.append(self.calls.handle(self._timed))
        return self._pass[0]

    def outside_pass(self) -> Any:
        """The encoder, ready for copies."""
        if self._pass:
            self.calls.end(self._pass, self._timed)
        self._timed = None
        return self.raw

    @property
    def is_finished(self) -> bool:
        return bool(self._finished)

    def finish(self) -> None:
        """End the recording; raise the errors that wgpu-native found in it."""
        if not self._finished:
            self.outside_pass()
            self.calls.finish(self.raw, self._finished)

    def submit(self, queue: Any) -> Any:
        """Submit the recorded commands; returns the submission."""
        if not self._submitted:
            self.finish()
            self.calls.submit(queue, self._finished, self._submitted)
        return self.calls.submission(self._submitted[0])

    def __del__(self) -> None:
        if not hasattr(self, "raw"):  # a signal handler raised before it was made
            return
        if self._pass and self._timed is None:  # interrupted, and never submitted
            self.calls.drop(self._pass)
        if self._finished and not self._submitted:
            self.calls.forget(self._finished)
