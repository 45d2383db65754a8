"""The whole table: every family is imported here, one line each."""

from everygrad.interop.torch.aten import (
    checks as checks,
    creation as creation,
    elementwise as elementwise,
    indexing as indexing,
    matrices as matrices,
    memory as memory,
    optimisers as optimisers,
    products as products,
    random as random,
    reductions as reductions,
    shapes as shapes,
    transforms as transforms,
)
from everygrad.interop.torch.aten.nn import (
    activations as activations,
    attention as attention,
    convolution as convolution,
    embedding_bags as embedding_bags,
    fake_quantization as fake_quantization,
    losses as losses,
    norms as norms,
    pooling as pooling,
    recurrent as recurrent,
    resampling as resampling,
)
from everygrad.interop.torch.aten.registry import HANDLERS as HANDLERS
