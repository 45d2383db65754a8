"""A rule: what a step does to one parameter, as a list of elementwise updates.

On a GPU the rules of all parameters are one launch, and in a compiled function one kernel. What
differs from step to step (learning rates, step counts) is a 0-d tensor in a rule, never a number,
so that a compiled step need not be compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from everygrad.autograd.modes import recording
from everygrad.backends import base
from everygrad.core.context import intercepted
from everygrad.core.scopes import untraced
from everygrad.core.tensor import Tensor, shared, wrap
from everygrad.dispatch import apply, update
from everygrad.dtypes import DType
from everygrad.ops.elementwise.basic import where
from everygrad.ops.record.families import Elementwise
from everygrad.ops.record.spec import NoRule
from everygrad.optim.group import Group, State, beside, precise


class Update(Elementwise):
    """A new value for a parameter or its state: a fused body, in the dtype of its first input.

    Its body, on tensors, is its derivative too, where a step is recorded (`differentiable=True`).
    """

    composed = True

    def out_dtype(self, inputs: Sequence[DType], params: dict[str, Any]) -> DType:
        return inputs[0]

    def portable(self, *inputs: Tensor, **params: Any) -> Tensor:
        made: Tensor = self.body(*inputs, **params)
        return made.astype(inputs[0].dtype)

    def jvp(
        self,
        out: Tensor,
        inputs: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        params: dict[str, Any],
    ) -> Tensor | None:
        if recording():
            raise NoRule(self.name)
        return None


class Change(NamedTuple):
    """A tensor of a rule gets a new value: that of the op on the tensors at these places, of which
    the first is the one that changes."""

    op: Update
    places: tuple[int, ...]
    params: dict[str, Any]


class Rule:
    """Changes, one after the other, of the tensors of one parameter."""

    def __init__(self, *changes: Change) -> None:
        self.changes = changes
        self._key = tuple((op, places, *params.items()) for op, places, params in changes)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def run(self, tensors: Sequence[Tensor]) -> None:
        for op, places, params in self.changes:
            update(op, *[tensors[k] for k in places], **params)

    def record(self, tensors: Sequence[Tensor]) -> None:
        """`run`, with every change a result in the graph of derivatives."""
        for op, places, params in self.changes:
            new = apply(op, *[tensors[k] for k in places], **params)
            tensors[places[0]].rebind(shared(new), new._node)


# --- bodies --------------------------------------------------------------------------------------


def descent(g: Any, p: Any, weight_decay: float, maximize: bool) -> Any:
    """The direction to step against: the gradient, negated to maximise, plus decay."""
    g = -g if maximize else g
    return g + p * weight_decay if weight_decay else g


def squared(x: Any) -> Any:
    return x * x


# A copy of the gradient becomes the direction to step against, for rules that need it after p moved
DIRECTION = Update(
    "optim.direction",
    lambda d, p, *, weight_decay, maximize: descent(d, p, weight_decay, maximize),
)


# a condition that always holds, or the body would be the array itself
_COPY = Update("optim.copy", lambda x: where((x == x) | (x != x), x, x))


# --- what a step shares --------------------------------------------------------------------------


class Shared:
    """What the parameters of one group share during one step: 0-d tensors made once, and updates
    that wait for each other to become one launch.

    Where the group is `differentiable`, new values are results in the graph: `put` and `alias` keep
    the nodes that they drop otherwise.
    """

    def __init__(
        self, group: Group, found_inf: Tensor | None = None, grad_scale: Tensor | None = None
    ) -> None:
        self._group = group
        self._found_inf = found_inf
        self._grad_scale = grad_scale
        self.differentiable = bool(group.get("differentiable"))
        self._made: dict[Any, Any] = {}
        self._waiting: dict[tuple[Rule, str], list[Sequence[Tensor]]] = {}
        self._then: list[Callable[[], None]] = []
        self._last: list[Callable[[], None]] = []

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made on the first call with this key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def change(self, rule: Rule, *tensors: Tensor) -> None:
        """Do a rule on a parameter's tensors; on a GPU not before `settle`, with all others'."""
        device = tensors[0].device
        if self.differentiable:
            rule.record(tensors)
        elif intercepted() or device == "cpu":  # a tracer must see every change
            rule.run(tensors)
        else:
            self._waiting.setdefault((rule, device), []).append(tensors)

    def then(self, act: Callable[[], None]) -> None:
        """Do something once the changes so far are done, and with them those of all parameters."""
        self._then.append(act)

    def settle(self) -> None:
        """Do what waits."""
        while self._waiting or self._then or self._last:
            waiting, self._waiting = self._waiting, {}
            for (rule, device), given in waiting.items():
                # payloads without a name: one that only its tensor holds may be written over
                made = base.get(device).rewrite_all(rule, [[t._data for t in ts] for ts in given])
                for tensors, new in zip(given, made, strict=True):
                    if new is None:
                        rule.run(tensors)
                        continue
                    for k, payload in new.items():
                        tensors[k].rebind(payload, tensors[k]._node)
            if self._then:
                acts, self._then = self._then, []
            elif not self._waiting:
                acts, self._last = self._last, []
            for act in acts:
                act()

    def gradient(self, p: Tensor) -> Tensor:
        """The gradient of `p`, without the scale that the loss had."""
        g: Any = p.grad
        scale = self._grad_scale
        if scale is None:
            return g
        key = ("unscale", p.dtype, p.device)
        factor = self.once(key, lambda: 1.0 / self.beside(p, scale))
        return g.astype(precise(p)) * factor

    def values(self, p: Tensor, state: State) -> dict[str, Any]:
        """What there is before a step that may have to be taken back."""
        if self._found_inf is None:
            return {}
        held = {name: shared(t) for name, t in state.items() if isinstance(t, Tensor)}
        return {"": shared(p), **held}

    def keep(self, before: dict[str, Any], p: Tensor, state: State) -> None:
        """Give p and its state their values from before, where an overflow was found."""
        found = self._found_inf
        if found is None:
            return
        stop = self.once(("stop", p.device), lambda: found.to(p.device))

        def restore() -> None:
            for name, t in {"": p, **state}.items():
                if isinstance(t, Tensor):
                    self.put(t, self.unless(stop, before.get(name), shared(t)))

        self._last.append(restore)  # behind all that waits, so that parameters still wait together

    def unless(self, stop: Tensor, old: Any, new: Any) -> Tensor:
        """The new value, or the old one where the step stops. State that `update` itself has just
        made has no old one, and begins with zeros."""
        # values that were one (step counts) stay one; why they are in the entry: see advance
        key = ("kept", id(old), id(new))
        was: Any = 0 if old is None else wrap(old)
        made = self.once(key, lambda: (old, new, where(stop, was, wrap(new))))
        result: Tensor = made[2]
        return result

    # --- 0-d tensors -----------------------------------------------------------------------------

    def lr(self, p: Tensor) -> Tensor:
        """The learning rate as a 0-d tensor beside `p`."""
        rate = self._group["lr"]
        if self.differentiable and isinstance(rate, Tensor):
            return self.once(("lr", p.dtype, p.device), lambda: self.beside(p, rate))
        return self.once(("lr", p.dtype, p.device), lambda: self._group.rate(p))

    def number(self, p: Tensor, name: str, of: Callable[[Group], float]) -> Tensor:
        """What `of` makes of the group's settings, as a 0-d tensor beside `p`."""
        return self._group.number(p, name, of)

    def count(self, p: Tensor, step: Tensor) -> Tensor:
        """A step count beside `p`, precise enough for it."""
        key = ("count", id(step), precise(p), p.device)
        return self.once(key, lambda: self.beside(p, step))

    def next_step(self, state: State) -> Tensor:
        """`state["step"]` one further."""
        return self.advance(state, "step", lambda step: step + 1.0)

    def advance(
        self, state: State, name: str, make: Callable[[Tensor], Tensor], *others: Tensor
    ) -> Tensor:
        """Give a 0-d tensor of the state the value that `make` makes of it, and of `others`.

        Values never change, so parameters whose numbers were one value keep sharing it.
        """
        held = state[name]
        # the old value stays in the entry: its id must not be given to another
        payload = shared(held)
        key = (name, id(payload), *map(id, others))
        made = self.once(key, lambda: (payload, make(held), others))
        self.put(held, made[1])
        new: Tensor = made[1]
        return new

    def outside(self) -> AbstractContextManager[Any]:
        """Around what a state begins with: not part of a compiled step, which would make it again
        and again; unless it will be a result in the graph of that step."""
        return nullcontext() if self.differentiable else untraced()

    # --- values, with their nodes where the step is differentiable -------------------------------

    def put(self, t: Tensor, new: Tensor) -> None:
        """Give a parameter or its state a new value."""
        if self.differentiable:
            t.rebind(shared(new), new._node)
        else:
            put(t, new)

    def alias(self, t: Tensor) -> Tensor:
        """Another name for a value, which may change on its own."""
        return wrap(shared(t), t._node) if self.differentiable else t.detach()

    def beside(self, p: Tensor, value: Tensor) -> Tensor:
        """A 0-d tensor on p's device, precise enough for p."""
        if not self.differentiable:
            return beside(p, value)
        moved: Tensor = value.to(p.device).astype(precise(p))
        return moved


def copied(t: Tensor) -> Tensor:
    """The same value, computed anew. A compiled step takes for granted which tensors share one
    value, so those that will go apart must not begin with one."""
    with untraced():
        return apply(_COPY, t.detach())


def put(t: Tensor, new: Tensor) -> None:
    """Give a parameter or its state a new value; a parameter stays the leaf that it is."""
    t.rebind(shared(new), t._node)
