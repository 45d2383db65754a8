"""Many processes: meshes of ranks, collectives as ops, and training across them."""

from everygrad.core.nearest import answering as _answering
from everygrad.distributed.checkpoints import load as load, save as save
from everygrad.distributed.collectives import (
    Work as Work,
    all_gather as all_gather,
    all_reduce as all_reduce,
    all_to_all as all_to_all,
    barrier as barrier,
    broadcast as broadcast,
    recv as recv,
    reduce as reduce,
    reduce_scatter as reduce_scatter,
    send as send,
    start_all_reduce as start_all_reduce,
)
from everygrad.distributed.mesh import Mesh as Mesh
from everygrad.distributed.parallel.clipping import clip_grad_norm_ as clip_grad_norm_
from everygrad.distributed.parallel.data_parallel import DataParallel as DataParallel
from everygrad.distributed.parallel.pipelines import Pipeline as Pipeline, pipeline as pipeline
from everygrad.distributed.parallel.shard_parameter import ShardParameter as ShardParameter
from everygrad.distributed.parallel.sync_batch_norm import (
    SyncBatchNorm as SyncBatchNorm,
    convert_sync_batchnorm as convert_sync_batchnorm,
)
from everygrad.distributed.parallel.tensor_parallel import (
    ColumnParallelLinear as ColumnParallelLinear,
    ParallelEmbedding as ParallelEmbedding,
    RowParallelLinear as RowParallelLinear,
    parallel_cross_entropy as parallel_cross_entropy,
    parallelize as parallelize,
    sequence_parallel as sequence_parallel,
)
from everygrad.distributed.parallel.zero import shard as shard
from everygrad.distributed.placed import (
    from_local as from_local,
    local_value as local_value,
    place as place,
    placements_of as placements_of,
)
from everygrad.distributed.placements import (
    Partial as Partial,
    Replicate as Replicate,
    Shard as Shard,
    extent as extent,
)
from everygrad.distributed.resharding import (
    full_value as full_value,
    reshard as reshard,
)
from everygrad.distributed.world import (
    attempt as attempt,
    init as init,
    local_rank as local_rank,
    rank as rank,
    run_local as run_local,
    world_size as world_size,
)

__all__ = [
    "ColumnParallelLinear",
    "DataParallel",
    "Mesh",
    "ParallelEmbedding",
    "Partial",
    "Pipeline",
    "Replicate",
    "RowParallelLinear",
    "Shard",
    "ShardParameter",
    "SyncBatchNorm",
    "Work",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "attempt",
    "barrier",
    "broadcast",
    "clip_grad_norm_",
    "convert_sync_batchnorm",
    "extent",
    "from_local",
    "full_value",
    "init",
    "load",
    "local_rank",
    "local_value",
    "parallel_cross_entropy",
    "parallelize",
    "pipeline",
    "place",
    "placements_of",
    "rank",
    "recv",
    "reduce",
    "reduce_scatter",
    "reshard",
    "run_local",
    "save",
    "send",
    "sequence_parallel",
    "shard",
    "start_all_reduce",
    "world_size",
]

__getattr__ = _answering(__name__)
