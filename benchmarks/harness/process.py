"""The parent's end: starts each peer's interpreter with the same environment and talks to it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import ALL_MODULES, CACHES, PYTHONS

ROOT = Path(__file__).resolve().parents[2]


class PeerError(Exception):
    """A peer could not do what it was asked; the message carries its traceback."""


@dataclass(frozen=True)
class Setup:
    """What all peers' processes share, and which interpreter runs each.

    By default the one `PYTHONS` names, else this one.
    """

    threads: int = 2
    pythons: tuple[tuple[str, str], ...] = ()

    def python(self, peer: str) -> str:
        default = str(ROOT / PYTHONS[peer]) if peer in PYTHONS else sys.executable
        return dict(self.pythons).get(peer, default)

    def environment(self, peer: str) -> dict[str, str]:
        names = ("OMP", "MKL", "OPENBLAS")
        threads = {f"{name}_NUM_THREADS": str(self.threads) for name in names}
        path = [str(ROOT)]
        # What a peer with an interpreter of its own imports comes from there alone.
        if self.python(peer) == sys.executable and "PYTHONPATH" in os.environ:
            path.append(os.environ["PYTHONPATH"])
        return os.environ | threads | {"PYTHONPATH": os.pathsep.join(path)}

    def run_module(self, peer: str, module: str, *args: str, timeout: float = 600.0) -> str:
        """What `python -m module args` prints, in the peer's interpreter."""
        command = [self.python(peer), "-m", module, *args]
        try:
            done = subprocess.run(
                command, env=self.environment(peer), cwd=ROOT, text=True, capture_output=True,
                timeout=timeout, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PeerError(f"{' '.join(command)}: {error}") from error
        if done.returncode:
            raise PeerError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
        return done.stdout


class Peer:
    """A running worker. `label` names its column: the same peer may run twice.

    `cache`, where given, is the folder its library is told to keep compiled code in.
    """

    def __init__(self, name: str, label: str, setup: Setup, timeout: float = 600.0) -> None:
        if name not in ALL_MODULES:
            raise ValueError(f"no peer {name!r}: there are {', '.join(ALL_MODULES)}")
        self.name, self.label, self.timeout = name, label, timeout
        self.cache: Path | None = None
        self._setup = setup
        self._start()

    def _start(self) -> None:
        python = self._setup.python(self.name)
        environment = self._setup.environment(self.name)
        if self.cache is not None and self.name in CACHES:
            environment[CACHES[self.name]] = str(self.cache)
        try:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.harness.worker", self.name],
                env=environment, cwd=ROOT, text=True, bufsize=1,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise PeerError(f"{python} does not run ({error.strerror}); `make bench` makes it") \
                from error  # fmt: skip
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A thread of its own, so that a peer that hangs is noticed instead of waited for.
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put("")

    def revive(self) -> None:
        """Start a new process if the last one died: one workload's crash is not the next's."""
        if self._process.poll() is not None:
            self.close()
            self._start()

    def restart(self, cache: Path | None) -> None:
        """A new process with that cache, the library imported and nothing run."""
        self.close()
        self.cache = cache
        self._start()
        self.ask(hello=True)

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to one request; PeerError if the peer failed, died or fell silent."""
        code = self._process.poll()
        if self._process.stdin is None or code is not None:
            raise PeerError(f"{self.label}: its process has ended with exit status {code}")
        with suppress(BrokenPipeError):  # it died just now: the reader says so
            self._process.stdin.write(json.dumps(request) + "\n")
        try:
            line = self._lines.get(timeout=self.timeout)
        except queue.Empty:
            self._process.kill()
            self._process.wait()
            raise PeerError(f"{self.label}: no answer to {request} in {self.timeout} s") from None
        if not line:
            code = self._process.wait()
            raise PeerError(f"{self.label}: died with exit status {code} during {request}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.label}: {request}\n{answer['error']}")
        return answer

    def close(self) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
