"""One rank's process: the user's script, and a note at its end for the launcher.

mpiexec may end well although a whole host is gone; the launcher believes these notes instead. This
file is run by its path and imports nothing of ours: the script begins as soon as Python does.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

NOTE = "everygrad.launch note "
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL = (("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
          ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"))  # fmt: skip


def rank() -> int:
    """The number that mpiexec gave this process."""
    return int(next((os.environ[name] for name in _RANKS if name in os.environ), "0"))


def share_cores() -> None:
    """Take this rank's share of the machine's cores, where there is at least one for each."""
    found = [(os.environ[a], os.environ[b]) for a, b in _LOCAL if a in os.environ]
    if not found or not hasattr(os, "sched_setaffinity"):
        return
    mine, ranks = map(int, found[0])
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // ranks
    if share:
        os.sched_setaffinity(0, cores[mine * share : (mine + 1) * share])


def note(state: str, text: str = "", as_line: bool = False) -> None:
    """Leave word for the launcher: a file where it can see one, else a line of output, which
    mpiexec brings to it from other hosts."""
    folder = os.environ.get("EVERYGRAD_LAUNCH_DIR")
    if folder and (as_line or not Path(folder).is_dir()):
        word = json.dumps([state, rank(), text])
        print(f"{NOTE}{folder} {word}", file=sys.__stderr__, flush=True)
    elif folder:
        whole = Path(folder) / f"{state}-{rank()}"
        part = whole.with_name(f".{whole.name}")
        part.write_text(text, encoding="utf-8")
        part.replace(whole)


def main() -> None:
    note("pid", str(os.getpid()))
    share_cores()
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            note("failed", f"exit status {end.code}")
        else:
            note("done")
        raise
    except BaseException as error:
        note("failed", f"{type(error).__name__}: {error}"[:2000])
        raise
    note("done")


if __name__ == "__main__":
    main()
