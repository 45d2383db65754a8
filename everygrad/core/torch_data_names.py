"""Names of torch.utils.data that eg.data does not have, with the reason, for errors and docs."""

from __future__ import annotations

ABSENT = {
    "DFIterDataPipe": "an experiment with pandas frames; eg.data.read_csv and read_parquet give "
    "columns as arrays",
    "_DatasetKind": "private: isinstance(dataset, eg.data.IterableDataset) says the same",
}
# names of eg.data that PyTorch keeps elsewhere, or does not have
ADDED = (
    *("BucketBatchSampler", "ImageFolder", "IterableWrapper", "SequenceWrapper", "TokenDataset"),
    *("TokenWriter", "WorkerInfo", "item_generator", "read_csv", "read_image", "read_npy"),
    *("read_npz", "read_parquet", "read_tokens", "transforms", "write_tokens"),
)
