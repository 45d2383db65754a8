"""Two hosts on one machine: network namespaces, each with a name and a core of its own, joined by a
link of a limited rate in both directions.

Needs root and Linux (ip, tc, unshare, taskset). Open MPI takes two namespaces of one host name for
one host and its ranks would share memory, so each has a name. The second host is reached as by ssh:
by a command with a bare environment.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

INTERFACE = "eth0"  # of both
_ENTER = """#!/bin/bash
# enter.sh N command: run it on host N
n=$1; shift
exec unshare --uts --mount bash -c '
hostname simulated-$0; hidden=$1; shift
if [ $0 = 1 ]; then mount -t tmpfs none "$hidden"; fi
exec ip netns exec %(name)s-$0 taskset -c %(cores)s "$@"' $n %(hidden)s "$@"
"""
_AGENT = """#!/bin/bash
# in place of ssh: agent.sh HOST command
while [[ "$1" == -* ]]; do shift; done
host=$1; shift
exec %(folder)s/enter.sh $((${host##*.} - 1)) env -i PATH="$PATH" HOME="$HOME" bash -c "$*"
"""


class Hosts(NamedTuple):
    """folder: for files that both see; own: one that the second host does not see."""

    folder: Path
    own: Path
    addresses: tuple[str, str]

    def inside(self, number: int) -> list[str]:
        """What to put before a command so that it runs on this host."""
        return [str(self.folder / "enter.sh"), str(number)]

    @property
    def file(self) -> str:
        """What `--hosts` of the launcher takes."""
        return str(self.folder / "hosts")

    @property
    def environment(self) -> dict[str, str]:
        """What makes mpiexec on the first host reach the second."""
        return {"PRTE_MCA_plm_ssh_agent": str(self.folder / "agent.sh"), "TMPDIR": str(self.own)}


@contextmanager
def two_hosts(rate: str) -> Iterator[Hosts]:
    """Two hosts and a link between them, of a rate such as 1gbit in each direction."""
    name = f"everygrad-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="everygrad-hosts-") as made:
        hosts = Hosts(Path(made), Path(made) / "own", ("10.77.0.1", "10.77.0.2"))
        hosts.own.mkdir()
        cores = sorted(os.sched_getaffinity(0))
        one_each = f"{cores[0]}" if len(cores) == 1 else f"$(($0 == 0 ? {cores[0]} : {cores[1]}))"
        words = {"name": name, "folder": made, "hidden": str(hosts.own), "cores": one_each}
        for script, text in (("enter.sh", _ENTER), ("agent.sh", _AGENT)):
            (hosts.folder / script).write_text(text % words, encoding="utf-8")
            (hosts.folder / script).chmod(0o755)
        lines = [f"{address} slots=1\n" for address in hosts.addresses]
        (hosts.folder / "hosts").write_text("".join(lines), encoding="utf-8")
        spaces = [f"{name}-{i}" for i in range(2)]
        try:
            for space in spaces:
                _run(f"ip netns add {space}")
            first, second = spaces
            _run(f"ip link add {INTERFACE} netns {first} type veth peer name {INTERFACE} "
                 f"netns {second}")  # fmt: skip
            for space, address in zip(spaces, hosts.addresses, strict=True):
                inside = f"ip netns exec {space}"
                _run(f"{inside} ip link set lo up")
                _run(f"{inside} ip addr add {address}/24 dev {INTERFACE}")
                _run(f"{inside} ip link set {INTERFACE} up")
                limit = f"root tbf rate {rate} burst 256kb latency 20ms"
                _run(f"{inside} tc qdisc add dev {INTERFACE} {limit}")
            yield hosts
        finally:
            for space in spaces:
                subprocess.run(["ip", "netns", "delete", space], check=False)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)
