"""All handlers: importing this loads every family."""

from everygrad.interop.onnx.operators import (
    casts as casts,
    control as control,
    elementwise as elementwise,
    indexing as indexing,
    normalisation as normalisation,
    pooling as pooling,
    products as products,
    quantised as quantised,
    random as random,
    recurrent as recurrent,
    reductions as reductions,
    shaping as shaping,
    strings as strings,
)
from everygrad.interop.onnx.operators.registry import HANDLERS as HANDLERS
