"""Datasets, samplers and loaders in PyTorch's names, readers of files, and transforms."""

from typing import Any as _Any

from everygrad.core.nearest import no_attribute as _no_attribute
from everygrad.core.torch_data_names import ABSENT as _ABSENT
from everygrad.data import transforms as transforms
from everygrad.data.collate import (
    default_collate as default_collate,
    default_convert as default_convert,
)
from everygrad.data.datapipes import (
    DataChunk as DataChunk,
    IterableWrapper as IterableWrapper,
    IterDataPipe as IterDataPipe,
    MapDataPipe as MapDataPipe,
    SequenceWrapper as SequenceWrapper,
    functional_datapipe as functional_datapipe,
)
from everygrad.data.dataset import (
    ChainDataset as ChainDataset,
    ConcatDataset as ConcatDataset,
    Dataset as Dataset,
    IterableDataset as IterableDataset,
    StackDataset as StackDataset,
    Subset as Subset,
    TensorDataset as TensorDataset,
    random_split as random_split,
)
from everygrad.data.loader import DataLoader as DataLoader
from everygrad.data.pipe_validation import (
    argument_validation as argument_validation,
    guaranteed_datapipes_determinism as guaranteed_datapipes_determinism,
    non_deterministic as non_deterministic,
    runtime_validation as runtime_validation,
    runtime_validation_disabled as runtime_validation_disabled,
)
from everygrad.data.readers.arrays import read_npy as read_npy, read_npz as read_npz
from everygrad.data.readers.images import ImageFolder as ImageFolder, read_image as read_image
from everygrad.data.readers.tables import read_csv as read_csv, read_parquet as read_parquet
from everygrad.data.readers.tokens import (
    TokenDataset as TokenDataset,
    TokenWriter as TokenWriter,
    read_tokens as read_tokens,
    write_tokens as write_tokens,
)
from everygrad.data.sampler import (
    BatchSampler as BatchSampler,
    BucketBatchSampler as BucketBatchSampler,
    DistributedSampler as DistributedSampler,
    RandomSampler as RandomSampler,
    Sampler as Sampler,
    SequentialSampler as SequentialSampler,
    SubsetRandomSampler as SubsetRandomSampler,
    WeightedRandomSampler as WeightedRandomSampler,
)
from everygrad.data.workers.item_seeds import item_generator as item_generator
from everygrad.data.workers.shared_tensors import register as _register
from everygrad.data.workers.worker_info import (
    WorkerInfo as WorkerInfo,
    get_worker_info as get_worker_info,
)

_register()  # tensors may be arguments and messages of multiprocessing


def __getattr__(name: str) -> _Any:
    reason = _ABSENT.get(name)
    raise _no_attribute("everygrad.data", name, globals(), f": {reason}" if reason else "")
