"""The ops: one record each, in its family's file.

Importing this package loads the ones that most programs use. The others are known by name
(`later`, a table made from the records) and loaded when one of them is first asked for: as
`eg.name`, as a method, or in the registry.
"""

from importlib import import_module

from everygrad.ops import (
    attention as attention,
    conv as conv,
    conversion as conversion,
    creation as creation,
    einops as einops,
    elementwise as elementwise,
    functions as functions,
    getitem as getitem,
    indexing as indexing,
    inplace as inplace,
    joining as joining,
    linalg as linalg,
    losses as losses,
    movement as movement,
    neural as neural,
    printing as printing,
    random as random,
    reduce as reduce,
    ufuncs as ufuncs,
)
from everygrad.ops.later import OPS
from everygrad.ops.spec import promise_methods

promise_methods()


def load_all() -> None:
    """Load every op, for whoever goes through the registry."""
    for module in OPS:
        import_module(f"everygrad.ops.{module}")
