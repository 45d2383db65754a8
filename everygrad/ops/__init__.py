"""The ops: one record each, in its family's file.

Importing this package loads the ones that most programs use. The others are known by name
(`later`, a table made from the records) and loaded when one of them is first asked for: as
`eg.name`, as a method, or in the registry.
"""

from importlib import import_module

from everygrad.ops.elementwise import basic as basic, math as math
from everygrad.ops.index import gather as gather
from everygrad.ops.linalg import matmul as matmul
from everygrad.ops.loss import losses as losses
from everygrad.ops.nn import (
    attention as attention,
    conv2d as conv2d,
    softmax_and_norm as softmax_and_norm,
)
from everygrad.ops.python import (
    conversion as conversion,
    creation as creation,
    dlpack as dlpack,
    einops as einops,
    getitem as getitem,
    inplace as inplace,
    printing as printing,
    ufuncs as ufuncs,
)
from everygrad.ops.random import generators as generators
from everygrad.ops.record.lazy_index import OPS
from everygrad.ops.record.spec import make_lazy_methods
from everygrad.ops.reduce import reductions as reductions
from everygrad.ops.shape import joining as joining, movement as movement

make_lazy_methods()


def load_all() -> None:
    """Load every op, for whoever goes through the registry."""
    for module in OPS:
        import_module(f"everygrad.ops.{module}")
