"""The whole table: every family is imported here, one line each."""

from everygrad.interop.torch.aten import (
    checks as checks,
    creation as creation,
    elementwise as elementwise,
    indexing as indexing,
    reductions as reductions,
    shapes as shapes,
)
from everygrad.interop.torch.aten.registry import HANDLERS as HANDLERS
