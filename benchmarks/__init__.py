"""Benchmarks of everygrad against its peers: `python -m benchmarks --help`.

A workload is data (`workloads`); a peer is a module that does it (`peers/`); each peer runs in a
process of its own (`harness/worker`) and the rounds of the peers alternate (`harness/measure`).
`probes/` take single figures, and `sweep/` times every op beside PyTorch.
"""
