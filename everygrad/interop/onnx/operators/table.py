"""All handlers: importing this loads every family."""

from everygrad.interop.onnx.operators import elementwise as elementwise, shaping as shaping
from everygrad.interop.onnx.operators.registry import HANDLERS as HANDLERS
