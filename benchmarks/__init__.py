"""Benchmarks of everygrad against its peers: `python -m benchmarks --help`.

A workload is data (`workloads.py`); a peer is a module that does it (`peers/`); each peer runs in
a process of its own (`worker.py`) and the rounds of the peers alternate (`measure.py`).
"""
