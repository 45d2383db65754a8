"""All handlers: importing this loads every family."""

from everygrad.interop.onnx.operators import (
    casts as casts,
    control as control,
    detection as detection,
    elementwise as elementwise,
    indexing as indexing,
    normalisation as normalisation,
    pooling as pooling,
    products as products,
    quantised as quantised,
    random as random,
    recurrent as recurrent,
    reductions as reductions,
    resize as resize,
    shaping as shaping,
    signal as signal,
    strings as strings,
)
from everygrad.interop.onnx.operators.domains import (
    attention as attention,
    classical as classical,
    language_models as language_models,
    training as training,
)
from everygrad.interop.onnx.operators.registry import HANDLERS as HANDLERS
