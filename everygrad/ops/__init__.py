"""The ops: one record each, in its family's file. Importing this package loads them all."""

from everygrad.ops import (
    attention as attention,
    conv as conv,
    conversion as conversion,
    creation as creation,
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
)
