"""How much of the machine other processes took while something was timed.

On two cores one busy neighbour makes a two-thread library wait at every barrier: times grow
tenfold, and not alike for all peers. Such rounds must be seen and left out.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

# Where others kept more than this much of a core busy, a figure is not to be trusted.
QUIET = 0.1

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # columns idle and iowait
_GUESTS = 8  # columns from here on are counted in user and nice already


def _busy_s() -> float:
    """Seconds all processors together have been busy since boot; 0.0 where nobody counts."""
    try:
        line = _STAT.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return 0.0
    ticks = [int(field) for field in line.split()[1 : 1 + _GUESTS]]
    busy = sum(t for i, t in enumerate(ticks) if i not in _IDLE)
    return busy / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Processor seconds of this process and of the children it has waited for."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


@dataclass
class Mark:
    """A moment; `others()` tells of the time since."""

    wall: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> Mark:
        return cls(time.perf_counter(), _busy_s(), _own_s())

    def others(self) -> float:
        """Processors other processes kept busy since then: 1.0 is one whole core."""
        end = Mark.now()
        foreign = (end.busy - self.busy) - (end.own - self.own)
        # The kernel counts in ticks of 10 ms: one tick on each side says nothing.
        slack = 2 / os.sysconf("SC_CLK_TCK") if end.busy else 0.0
        return max(0.0, foreign - slack) / max(end.wall - self.wall, 1e-9)
