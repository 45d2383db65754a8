"""Many processes: meshes of ranks, collectives as ops, and training across them."""

from everygrad.distributed.collectives import (
    all_gather as all_gather,
    all_reduce as all_reduce,
    all_to_all as all_to_all,
    barrier as barrier,
    broadcast as broadcast,
    recv as recv,
    reduce as reduce,
    reduce_scatter as reduce_scatter,
    send as send,
)
from everygrad.distributed.mesh import Mesh as Mesh
from everygrad.distributed.world import (
    init as init,
    rank as rank,
    run_local as run_local,
    world_size as world_size,
)

__all__ = [
    "Mesh",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "init",
    "rank",
    "recv",
    "reduce",
    "reduce_scatter",
    "run_local",
    "send",
    "world_size",
]
