"""One way to make a graph from another: value by value, in order, by rules.

A new graph, since its values have numbers of their own and passes after it may change their
arguments. What no rule replaces is the same call of rewritten arguments, with the user's line and
the generation it had; equal calls become one.
"""

from __future__ import annotations

from collections.abc import Sequence

from everygrad.compiler.ir import Graph, Value, in_order


class Rewriter:
    """Copies values of the old graph into `graph`; subclasses say what is made instead.

    `made` has the new value of each old one. Who fills it in beforehand decides what is taken for
    given: the copy does not look behind it.
    """

    def __init__(self) -> None:
        self.graph = Graph()
        self.made: dict[Value, Value] = {}

    def run(self, old: Graph) -> Graph:
        """The new graph, with all inputs of the old one: their numbers are the caller's."""
        for v in old.inputs:
            self.made[v] = self.input(v)
        return self.copy(old.outputs)

    def input(self, v: Value) -> Value:
        """A new input like v."""
        return self.graph.input(v.shape, v.dtype, v.where)

    def copy(self, outputs: Sequence[Value]) -> Graph:
        """The new graph, which gives these values of the old one."""
        for v in in_order(self._missing(outputs)):
            if not self.is_late(v):
                self.get(v)
        self.graph.outputs = [self.get(v) for v in outputs]
        return self.graph

    def _missing(self, outputs: Sequence[Value]) -> set[Value]:
        """What the outputs are made of, up to what is made already."""
        todo = [v for v in outputs if v not in self.made]
        seen = set(todo)
        for v in todo:
            for a in v.args:
                if a not in seen and a not in self.made:
                    seen.add(a)
                    todo.append(a)
        return seen

    def get(self, v: Value) -> Value:
        """v in the new graph."""
        found = self.made.get(v)
        if found is None:
            found = self.made[v] = self.rebuilt(v)
        return found

    def rebuilt(self, v: Value) -> Value:
        """v made in the new graph."""
        if v.kind == "input":
            return self.input(v)
        if v.kind == "full":
            return self.graph.full(v.shape, v.params["value"], v.dtype)
        if v.kind == "constant":
            return self.graph.constant(v.params["array"], v.dtype)
        args = [self.get(a) for a in v.args]
        found = self.replacement(v, args)
        if found is None:
            found = self.graph.call(v.op, args, v.params, v.where, v.generation)
        return found

    # --- what subclasses say ---------------------------------------------------------------------

    def replacement(self, v: Value, args: list[Value]) -> Value | None:
        """What to make of v, whose rewritten arguments these are; None: the same call of them."""
        return None

    def is_late(self, v: Value) -> bool:
        """Whether v is made only when another value asks for it."""
        return False
