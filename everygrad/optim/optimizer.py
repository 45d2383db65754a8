"""The Optimizer: groups of parameters, a state for each, and one rule mapped over them.

A subclass defines `update`, the rule for one parameter. It gives the parameter and its state new
values by `rebind`, so that everyone who holds them sees the change. What differs from step to step
(learning rates, step counts) is a 0-d tensor in the rule, never a number, so that a compiled step
need not be compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from everygrad import dtypes
from everygrad.autograd.modes import enable_grad, no_grad
from everygrad.backends import base
from everygrad.core.context import intercepted, tracing
from everygrad.core.scopes import untraced
from everygrad.core.tensor import Tensor, shared, wrap
from everygrad.dispatch import as_tensor, update
from everygrad.dtypes import DType
from everygrad.errors import ArgumentError, DtypeError, GradientError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import tensor, zeros_like
from everygrad.ops.record.families import Elementwise


class State(dict[str, Any]):
    """What an optimiser remembers of one parameter; `changes` counts what was put there."""

    changes = 0

    def __setitem__(self, name: str, value: Any) -> None:
        self.changes += 1
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self.changes += 1
        super().__delitem__(name)


class Counted(list[Any]):
    """A list that counts its changes, for a compiled step to look at."""

    changes = 0


def _counting(name: str) -> Callable[..., Any]:
    change = getattr(list, name)

    def method(self: Counted, *args: Any, **kwargs: Any) -> Any:
        self.changes += 1
        return change(self, *args, **kwargs)

    return method


for _name in (
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
):
    setattr(Counted, _name, _counting(_name))


class Update(Elementwise):
    """A new value for a parameter or its state: a fused body, in the dtype of its first input."""

    def out_dtype(self, inputs: Sequence[DType], params: dict[str, Any]) -> DType:
        return inputs[0]


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


def descent(g: Any, p: Any, weight_decay: float, maximize: bool) -> Any:
    """The direction to walk against: the gradient, negated to maximise, plus decay."""
    g = -g if maximize else g
    return g + p * weight_decay if weight_decay else g


def put(t: Tensor, new: Tensor) -> None:
    """Give a parameter or its state a new value; a parameter stays the leaf that it is."""
    t.rebind(shared(new), t._node)


class Group(dict[str, Any]):
    """The settings of a group of parameters.

    The learning rate is a 0-d tensor besides, which follows the setting: a compiled step reads the
    tensor at each call, where a Python number would be a constant.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.changes = 0  # that a compiled step does not see by itself
        self._rates: dict[tuple[DType, str], Tensor] = {}

    def rate(self, p: Tensor) -> Tensor:
        """The learning rate as a 0-d tensor beside `p`."""
        lr = self["lr"]
        if isinstance(lr, Tensor):
            return beside(p, lr)
        key = (precise(p), p.device)
        if key not in self._rates:
            with untraced():
                self._rates[key] = beside(p, lr)
        return self._rates[key]

    def __setitem__(self, name: str, value: Any) -> None:
        number = name == "lr" and not isinstance(value, Tensor)
        if not number or isinstance(self.get("lr"), Tensor):
            self.changes += 1
        super().__setitem__(name, value)
        if number:
            for (dtype, device), held in self._rates.items():
                held.rebind(base.get(device).full((), float(value), dtype), None)

    def update(self, settings: Mapping[str, Any]) -> None:  # type: ignore[override]  # the one form
        for name, value in settings.items():
            if self.get(name) is not value:
                self[name] = value

    def __ior__(self, settings: Any) -> Self:  # type: ignore[override,misc]  # as update
        self.update(settings)
        return self


class Optimizer:
    """The base of all optimisers.

    A half parameter (bfloat16, float16) has a float32 master copy in its state, "master", where
    small steps add up that the parameter itself is too coarse for; `master_weights=False`, for a
    group or for all, saves that memory.

    `params` are tensors, or dicts with the key "params" and settings for that group alone. `state`
    holds what the rule remembers of each parameter; `param_groups` the settings in force, which may
    be changed between steps.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor | Mapping | str):
            raise ArgumentError(
                f"{self._name}: params must be an iterable of tensors or dicts, "
                f"got {type(params).__name__}; put it into a list"
            )
        if isinstance(params, set | frozenset):
            raise ArgumentError(f"{self._name}: a set has no order to save; give a list")
        groups = list(params)
        if not groups:
            raise ArgumentError(f"{self._name}: got no parameters; is the model empty?")
        self.defaults = {**defaults, "master_weights": defaults.get("master_weights", True)}
        self.changes = 0  # of groups and of what the state holds
        self.state: dict[Tensor, State] = {}
        self.param_groups: list[Group] = Counted()
        for group in groups if isinstance(groups[0], Mapping) else [{"params": groups}]:
            self.add_param_group(group)

    @property
    def _name(self) -> str:
        return type(self).__name__

    # --- the rule --------------------------------------------------------------------------------

    def check_group(self, group: Group) -> None:
        """Refuse settings that make no sense; a subclass adds its own."""
        lr = group["lr"]
        if isinstance(lr, Tensor):
            if lr.ndim or not lr.dtype.is_float:
                raise ArgumentError(
                    f"{self._name}: lr as a tensor must be 0-d and floating point, "
                    f"got {lr.dtype}{list(lr.shape)}"
                )
        else:
            self.check_at_least_zero(group, "lr")
        self.check_at_least_zero(group, "weight_decay")

    def check_at_least_zero(self, group: Group, name: str) -> None:
        value = group[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ArgumentError(f"{self._name}: {name} must be at least 0, got {value!r}")

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        """Put into `state` what is not there yet and has a value before the first step."""

    def update(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        """Give one parameter its new value, and `state` what to remember."""
        raise NotImplementedError(f"{self._name} defines no update(); an Optimizer needs one")

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        found_inf: Tensor | None = None,
        grad_scale: Tensor | None = None,
    ) -> Any:
        """Move every parameter that has a gradient.

        `closure`, if given, computes the loss and its gradients first; its loss is returned. Where
        `found_inf`, a 0-d bool tensor, is true, all stays as it was. Gradients are divided by
        `grad_scale`, a 0-d tensor. `GradScaler` gives both.

        Parameters move one after the other: Ctrl-C may leave some where they were. A compiled step
        is done wholly or not at all.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        if (tracer := tracing.get()) is not None:
            tracer.depends_on_item(vars(self), "param_groups", self.param_groups, "param_groups")
            tracer.depends(self, *self.param_groups, *[g["params"] for g in self.param_groups])
        with no_grad():
            for group in self.param_groups:
                shared = Shared(group, found_inf, grad_scale)
                for p in group["params"]:
                    if p.grad is not None:
                        held = self.state_of(p)
                        self.move(p, shared.gradient(p), held, group, shared)
                        if tracer is not None:
                            what = "the state of an optimiser"
                            tracer.depends_on_item(self.state, p, held, what)
                shared.settle()
        return loss

    def move(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        """`update` on one parameter, by its master weights if it has any; or on nothing, where an
        overflow was found."""
        weights = _master(p, state) if group["master_weights"] and p.dtype.itemsize < 4 else p
        self.make_state(weights, state, group, shared)
        before = shared.values(p, state)
        self.update(weights, g, state, group, shared)
        if weights is not p:
            shared.settle()
            put(p, weights.astype(p.dtype))
        shared.keep(before, p, state)

    def state_of(self, p: Tensor) -> State:
        """What is remembered of p; a compiled step looks whether it is still the same."""
        held = self.state.get(p)
        if not isinstance(held, State):  # nothing yet, or put there by the user
            held = self.state[p] = State(held or {})
        return held

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or make them zeros if not `set_to_none`."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None if set_to_none or p.grad is None else zeros_like(p)

    # --- groups ----------------------------------------------------------------------------------

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Optimise more parameters, with settings of their own."""
        unknown = sorted(set(param_group) - set(self.defaults) - {"params"})
        if unknown or "params" not in param_group:
            raise ArgumentError(
                f"{self._name}: a group is a dict with params and any of "
                f"{', '.join(self.defaults)}; got {', '.join(param_group)}"
            )
        given = param_group["params"]
        params = [given] if isinstance(given, Tensor) else list(given)
        if not params:
            raise ArgumentError(f"{self._name}: got a group without parameters")
        held = {id(p) for group in self.param_groups for p in group["params"]}
        for i, p in enumerate(params):
            self._check_param(i, p)
            if id(p) in held:
                raise ArgumentError(
                    f"{self._name}: parameter {i} (shape {p.shape}) was given before; "
                    f"it would be moved twice in a step"
                )
            held.add(id(p))
        group = Group({**self.defaults, **param_group, "params": Counted(params)})
        self.check_group(group)
        self.param_groups.append(group)
        self.changes += 1

    def _check_param(self, i: int, p: Any) -> None:
        if not isinstance(p, Tensor):
            raise ArgumentError(
                f"{self._name}: parameter {i} is a {type(p).__name__}, not a Tensor"
            )
        if not p.is_leaf:
            raise GradientError(
                f"{self._name}: parameter {i} (shape {p.shape}) is the result of an op; "
                f"only leaves can be optimised"
            )
        if not p.dtype.is_float:
            raise DtypeError(f"{self._name}: parameter {i} is {p.dtype}; it must be real floating")

    # --- saving and loading ----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state by parameter number, and the groups with numbers in place of parameters."""
        numbers = {id(p): i for i, p in enumerate(self._params())}
        return {
            "state": {
                numbers[id(p)]: {k: _snapshot(v) for k, v in held.items()}
                for p, held in self.state.items()
                if held
            },
            "param_groups": [
                {k: _snapshot(v) for k, v in group.items() if k != "params"}
                | {"params": [numbers[id(p)] for p in group["params"]]}
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off; if it raises, nothing has changed."""
        groups, saved = state_dict["param_groups"], state_dict["state"]
        sizes = [len(g["params"]) for g in groups]
        wanted = [len(g["params"]) for g in self.param_groups]
        if sizes != wanted:
            raise ArgumentError(
                f"load_state_dict: groups of {sizes} parameters do not fit {self._name}'s {wanted}"
            )
        merged = [
            Group({**own, **{k: _snapshot(v) for k, v in new.items()}, "params": own["params"]})
            for own, new in zip(self.param_groups, groups, strict=True)
        ]
        for group in merged:
            unknown = sorted(set(group) - set(self.defaults) - {"params"})
            if unknown:
                raise ArgumentError(f"load_state_dict: {self._name} has no {', '.join(unknown)}")
            self.check_group(group)
        order = [i for group in groups for i in group["params"]]
        by_number = dict(zip(order, self._params(), strict=True))
        known: dict[Any, Tensor] = {}
        state = {
            by_number[i]: {
                k: _restored(k, v, by_number[i], known, "master" in held) for k, v in held.items()
            }
            for i, held in saved.items()
        }
        for own, group in zip(self.param_groups, merged, strict=True):
            own.update(group)
        for p in {*self.state, *state}:
            self._take_up(p, State(state.get(p, {})))

    def _take_up(self, p: Tensor, new: State) -> None:
        """Give the state of p these values; tensors that are there stay the ones they are."""
        held = self.state_of(p)
        if held.keys() != new.keys():
            self.changes += 1
        for name in held.keys() - new.keys():
            del held[name]
        for name, value in new.items():
            known = held.get(name)
            if isinstance(known, Tensor) and isinstance(value, Tensor):
                known.rebind(value._data, None)
            else:
                held[name] = value

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def __repr__(self) -> str:
        lines = []
        for i, group in enumerate(self.param_groups):
            shown = ", ".join(f"{k}={v}" for k, v in group.items() if k != "params")
            lines.append(f"  group {i}: {len(group['params'])} parameters, {shown}")
        return f"{self._name}(\n" + "\n".join(lines) + "\n)"


class Shared:
    """What the parameters of one group share during one step: 0-d tensors made once."""

    def __init__(
        self, group: Group, found_inf: Tensor | None = None, grad_scale: Tensor | None = None
    ) -> None:
        self._group = group
        self._found_inf = found_inf
        self._grad_scale = grad_scale
        self._made: dict[Any, Any] = {}
        self._waiting: dict[tuple[Rule, str], list[Sequence[Tensor]]] = {}

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made on the first call with this key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def change(self, rule: Rule, *tensors: Tensor) -> None:
        """Do a rule on a parameter's tensors; on a GPU not before `settle`, with all others'."""
        device = tensors[0].device
        if intercepted() or device == "cpu":  # a tracer must see every change
            rule.run(tensors)
        else:
            self._waiting.setdefault((rule, device), []).append(tensors)

    def settle(self) -> None:
        """Do what waits."""
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

    def gradient(self, p: Tensor) -> Tensor:
        """The gradient of `p`, without the scale that the loss had."""
        g: Any = p.grad
        scale = self._grad_scale
        if scale is None:
            return g
        key = ("unscale", p.dtype, p.device)
        factor = self.once(key, lambda: 1.0 / beside(p, scale))
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
        self.settle()
        stop = self.once(("stop", p.device), lambda: found.to(p.device))
        for name, t in {"": p, **state}.items():
            if isinstance(t, Tensor):
                put(t, self.unless(stop, before.get(name), shared(t)))

    def unless(self, stop: Tensor, old: Any, new: Any) -> Tensor:
        """The new value, or the old one where the step stops. State that `update` itself has just
        made has no old one, and begins with zeros."""
        # values that were one (step counts) stay one; why they are in the entry: see next_step
        key = ("kept", id(old), id(new))
        was = 0.0 if old is None else wrap(old)
        made = self.once(key, lambda: (old, new, where(stop, was, wrap(new))))
        result: Tensor = made[2]
        return result

    def lr(self, p: Tensor) -> Tensor:
        """The learning rate as a 0-d tensor beside `p`."""
        return self.once(("lr", p.dtype, p.device), lambda: self._group.rate(p))

    def next_step(self, state: State) -> Tensor:
        """`state["step"]` one further.

        Values never change, so parameters whose counts were one value keep sharing it.
        """
        held = state["step"]
        # the old value stays in the entry: its id must not be given to another
        payload = shared(held)
        made = self.once(("step", id(payload)), lambda: (payload, held + 1.0))
        put(held, made[1])
        return made[1]


def _master(p: Tensor, state: State) -> Tensor:
    """The float32 master copy of a half parameter, which follows it to another value."""
    if "master" not in state:
        with untraced():  # zeros serve: where p is something else, the copy takes it up now
            state["master"] = zeros_like(p, dtypes.float32)
    master: Tensor = state["master"]
    put(master, where(master.astype(p.dtype) == p, master, p.astype(dtypes.float32)))
    return master


def precise(p: Tensor) -> DType:
    """The dtype of scalars beside `p`: half floats are computed in float32."""
    return dtypes.float64 if p.dtype is dtypes.float64 else dtypes.float32


def beside(p: Tensor, value: float | Tensor) -> Tensor:
    """A number or 0-d tensor as a 0-d tensor on p's device, precise enough for p."""
    if isinstance(value, Tensor):
        moved: Tensor = value.detach().to(p.device).astype(precise(p))
        return moved
    return as_tensor(float(value), p, precise(p))


def _snapshot(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _restored(name: str, value: Any, p: Tensor, known: dict[Any, Tensor], master: bool) -> Any:
    """A saved value as state of `p`, or of its master weights; equal step counts become one value
    again."""
    if not isinstance(value, Tensor):
        return value
    if name == "step":
        count = tensor(value, dtypes.float32, p.device)
        return known.setdefault((count.item(), p.device), count).detach()
    if value.shape != p.shape:
        raise ShapeError(
            f"load_state_dict: {name} has shape {value.shape}, its parameter {p.shape}"
        )
    return tensor(value, precise(p) if master else p.dtype, p.device)
