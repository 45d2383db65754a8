"""The Optimizer: groups of parameters, a state for each, and one rule mapped over them.

A subclass defines `update`, the rule for one parameter. It gives the parameter and its state new
values by `rebind`, so that everyone who holds them sees the change. What differs from step to step
(learning rates, step counts) is a 0-d tensor in the rule, never a number, so that a compiled step
need not be compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict, Unpack
from weakref import ref

from everygrad import dtypes
from everygrad._jit.jit import jit
from everygrad.autograd.modes import enable_grad, no_grad, transform_depth
from everygrad.backends import base
from everygrad.backends.gpu import GpuBackend
from everygrad.core.context import intercepted, tracing
from everygrad.core.scopes import untraced
from everygrad.core.tensor import Tensor, Wrapped
from everygrad.errors import ArgumentError, DtypeError, GradientError, ShapeError, TraceError
from everygrad.nn.parameter import other_ranks
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import tensor, zeros, zeros_like
from everygrad.optim.group import (
    NOTES as NOTES,
    Counted as Counted,
    Group as Group,
    State as State,
    beside as beside,
    precise as precise,
)
from everygrad.optim.hooks import Hooks
from everygrad.optim.rule import (
    Change as Change,
    Rule as Rule,
    Shared as Shared,
    Update as Update,
    descent as descent,
    put as put,
)


class Switches(TypedDict, total=False):
    """PyTorch's switches. The first three choose between implementations of one rule; here there is
    one: they are taken, in calls and in states from there, and change nothing. `differentiable`:
    a step is part of the graph, so that gradients flow through it."""

    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


_MOST_CHOICES = 8  # of parameters with gradients, for which eager steps are compiled
_SWITCHES = frozenset(Switches.__annotations__)
_LABELS = frozenset(("name", "param_names"))  # of a group, for people to read


class Optimizer(Hooks):
    """The base of all optimisers.

    A half parameter (bfloat16, float16) has a float32 master copy in its state, "master", where
    small steps add up that the parameter itself is too coarse for; `master_weights=False`, for a
    group or for all, saves that memory.

    `params` are tensors, pairs of a name and a tensor, or dicts with the key "params" and settings
    for that group alone. `state` holds what the rule remembers of each parameter; `param_groups`
    the settings in force, which may be changed between steps: a new learning rate, momentum or
    first beta does not make a compiled step trace again.

    >>> import everygrad as eg
    >>> w, b = eg.ones((2, 2), requires_grad=True), eg.zeros((2,), requires_grad=True)
    >>> opt = eg.optim.SGD([{"params": [w], "weight_decay": 0.1}, {"params": [b]}], lr=0.5)
    >>> [group["weight_decay"] for group in opt.param_groups]
    [0.1, 0.0]
    """

    elementwise = True  # whether a rule looks at single elements: others need whole parameters
    separate = True  # whether a rule moves each parameter by itself
    reduces = False  # whether a rule has reductions or products: eager steps on GPUs are compiled

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        **switches: Unpack[Switches],
    ) -> None:
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
        self.check_switches(switches)
        if switches.get("differentiable"):
            self.defaults["differentiable"] = True
        tracer = tracing.get()
        self._made_in = None if tracer is None else ref(tracer)
        self._compiled: Any = None  # `_move_all`, where eager steps are compiled
        self._choices: set[tuple[int, ...]] = set()  # of parameters with gradients, seen so far
        self.changes = 0  # of groups, hooks, and of what the state holds
        self._begin_hooks()
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
        if "weight_decay" in group:
            self.check_at_least_zero(group, "weight_decay")

    def check_switches(self, given: Mapping[str, Any]) -> None:
        """Refuse keyword arguments that are none of PyTorch's switches."""
        unknown = sorted(set(given) - _SWITCHES)
        if unknown:
            raise ArgumentError(
                f"{self._name}: has no argument {', '.join(unknown)}; it takes "
                f"{', '.join(self.defaults)}"
            )

    def check_at_least_zero(self, group: Group, *names: str) -> None:
        for name in names:
            value = group[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ArgumentError(f"{self._name}: {name} must be at least 0, got {value!r}")

    def check_betas(self, group: Group, count: int = 2) -> None:
        betas = group["betas"]
        number = {2: "two", 3: "three"}[count]
        if len(betas) != count or not all(0 <= b < 1 for b in betas):
            raise ArgumentError(
                f"{self._name}: betas must be {number} numbers from 0 to below 1, got {betas}"
            )

    def make_state(self, p: Tensor, state: State, group: Group, shared: Shared) -> None:
        """Put into `state` what is not there yet and has a value before the first step."""

    def begin(self, p: Tensor, state: State, shared: Shared, *names: str) -> bool:
        """Make a step count of 0 and zeros like `p` by these names; False if that was done. A
        setting that was switched on meanwhile, such as amsgrad, may need a name more."""
        if "step" in state:
            for name in names:
                if name not in state:
                    with shared.outside():
                        state[name] = zeros_like(p)
            return False
        with shared.outside():
            zero = shared.once(("zero", p.device), lambda: zeros((), "float32", p.device))
            state["step"] = zero.detach()
            state.update({name: zeros_like(p) for name in names})
        return True

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
        args: Any = () if closure is None else (closure,)
        kwargs: Any = {"found_inf": found_inf, "grad_scale": grad_scale}
        kwargs = {name: t for name, t in kwargs.items() if t is not None}
        for hook in self._called("step_pre"):
            changed = hook(self, args, kwargs)
            if changed is not None:
                args, kwargs = _arguments(self._name, changed)
        result = self._step(*args, **kwargs)
        for hook in self._called("step_post"):
            hook(self, args, kwargs)
        return result

    def _step(
        self,
        closure: Callable[[], Any] | None = None,
        found_inf: Tensor | None = None,
        grad_scale: Tensor | None = None,
    ) -> Any:
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        self._check_differentiable(found_inf)
        if self.reduces and self._is_compiled():
            self._compiled = self._compiled or jit(self._move_all)
            self._compiled(found_inf, grad_scale)
        else:
            self._move_all(found_inf, grad_scale)
        return loss

    def _is_compiled(self) -> bool:
        """Whether a step that nothing looks into moves parameters on GPUs only: one launch would be
        one reduction or one change of one parameter. Not where other parameters have gradients at
        every step: each choice of them is a program of its own."""
        if intercepted() or transform_depth():
            return False
        moving = [(p, g) for g in self.param_groups for p in g["params"] if p.grad is not None]
        if any(isinstance(p._data, Wrapped) or g.get("differentiable") for p, g in moving):
            return False
        if not all(
            isinstance(base.get(device), GpuBackend) for device in {p.device for p, _ in moving}
        ):
            return False
        if len(self._choices) <= _MOST_CHOICES:
            self._choices.add(tuple(id(p) for p, _ in moving))
        return bool(moving) and len(self._choices) <= _MOST_CHOICES

    def _move_all(self, found_inf: Tensor | None, grad_scale: Tensor | None) -> None:
        """Move every parameter that has a gradient."""
        tracer = tracing.get()
        if self._made_in is not None and self._made_in() is tracer:
            tracer = None  # an optimiser of one call: nothing of it is there before or after
        if tracer is not None:
            if tracer.acts_after(self):
                raise TraceError(
                    f"jit: {self._name}.step() comes after its scheduler's step(), whose new "
                    f"learning rate holds from the next call on; step the scheduler last"
                )
            tracer.depends_on_item(vars(self), "param_groups", self.param_groups, "param_groups")
            tracer.depends(self, *self.param_groups, *[g["params"] for g in self.param_groups])
        for group in self.param_groups:
            with enable_grad() if group.get("differentiable") else no_grad():
                shared = Shared(group, found_inf, grad_scale)
                for p in group["params"]:
                    if p.grad is not None:
                        held = self.state_of(p)
                        self.move(p, shared.gradient(p), held, group, shared)
                        if tracer is not None:
                            what = "the state of an optimiser"
                            tracer.depends_on_item(self.state, p, held, what)
                shared.settle()

    def _check_differentiable(self, found_inf: Tensor | None) -> None:
        """Refuse, before anything moves, what cannot be a result in a graph."""
        for group in self.param_groups:
            if not group.get("differentiable"):
                continue
            if found_inf is not None:
                raise ArgumentError(
                    f"{self._name}.step: differentiable=True takes no found_inf: a step that is "
                    f"taken back has no derivative; scale nothing, or step without it"
                )
            for i, p in enumerate(group["params"]):
                if p.grad is not None and p.requires_grad and p.is_leaf:
                    raise GradientError(
                        f"{self._name}.step: differentiable=True makes parameter {i} (shape "
                        f"{p.shape}) the result of an op, and it is a leaf, whose gradient would "
                        f"be lost; give the optimiser p.clone()"
                    )

    def move(self, p: Tensor, g: Tensor, state: State, group: Group, shared: Shared) -> None:
        """`update` on one parameter, by its master weights if it has any; or on nothing, where an
        overflow was found."""
        half = p.dtype.itemsize < 4 and not shared.differentiable
        weights = _master(p, state) if group["master_weights"] and half else p
        self.make_state(weights, state, group, shared)
        before = shared.values(p, state)
        self.update(weights, g, state, group, shared)
        if weights is not p:
            shared.then(lambda: put(p, weights.astype(p.dtype)))
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
        known = {*self.defaults, *_SWITCHES, *NOTES, *_LABELS, "params"}
        if set(param_group) - known or "params" not in param_group:
            raise ArgumentError(
                f"{self._name}: a group is a dict with params and any of "
                f"{', '.join(self.defaults)}; got {', '.join(param_group)}"
            )
        given = param_group["params"]
        params, names = _unnamed(self._name, [given] if isinstance(given, Tensor) else list(given))
        if not params:
            raise ArgumentError(f"{self._name}: got a group without parameters")
        held = {id(p) for group in self.param_groups for p in group["params"]}
        connected = param_group.get("differentiable", self.defaults.get("differentiable"))
        for i, p in enumerate(params):
            self._check_param(i, p)
            if not p.is_leaf and not connected:
                raise GradientError(
                    f"{self._name}: parameter {i} (shape {p.shape}) is the result of an op; only "
                    f"leaves can be optimised, or anything with differentiable=True"
                )
            if id(p) in held:
                raise ArgumentError(
                    f"{self._name}: parameter {i} (shape {p.shape}) was given before; "
                    f"it would be moved twice in a step"
                )
            held.add(id(p))
        self.check_switches({k: v for k, v in param_group.items() if k in _SWITCHES})
        own = {k: v for k, v in param_group.items() if k not in _SWITCHES}
        labels = {} if names is None else {"param_names": names}
        graph = {"differentiable": True} if connected else {}
        group = Group({**self.defaults, **own, **labels, **graph, "params": Counted(params)})
        self.check_group(group)
        self.param_groups.append(group)
        self.changes += 1

    def _check_param(self, i: int, p: Any) -> None:
        if not isinstance(p, Tensor):
            raise ArgumentError(
                f"{self._name}: parameter {i} is a {type(p).__name__}, not a Tensor"
            )
        if not p.dtype.is_float:
            raise DtypeError(f"{self._name}: parameter {i} is {p.dtype}; it must be real floating")
        others = other_ranks([p])
        if others is not None and not others.parts and not self.separate:
            raise ArgumentError(
                f"{self._name}: looks at all parameters at once, and other ranks have other layers "
                f"than that of parameter {i} (shape {p.shape}); take a rule that does not, such as "
                f"AdamW"
            )
        if others is not None and others.parts and not self.elementwise:
            raise ArgumentError(
                f"{self._name}: parameter {i} (shape {p.shape}) is a part of one whose rest other "
                f"ranks have, and this rule looks at more than single elements; take one that does "
                f"not, such as AdamW, or DataParallel, where each rank has whole parameters"
            )

    # --- saving and loading ----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state by parameter number, and the groups with numbers in place of parameters."""
        for hook in self._called("state_dict_pre"):
            hook(self)
        numbers = {id(p): i for i, p in enumerate(self._params())}
        made: dict[str, Any] = {
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
        for hook in self._called("state_dict_post"):
            changed = hook(self, made)
            made = made if changed is None else changed
        return made

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off; if it raises, nothing has changed."""
        for hook in self._called("load_state_dict_pre"):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        groups, saved = state_dict["param_groups"], state_dict["state"]
        sizes = [len(g["params"]) for g in groups]
        wanted = [len(g["params"]) for g in self.param_groups]
        if sizes != wanted:
            raise ArgumentError(
                f"load_state_dict: groups of {sizes} parameters do not fit {self._name}'s {wanted}"
            )
        merged = [
            self._merged(own, new) for own, new in zip(self.param_groups, groups, strict=True)
        ]
        order = [i for group in groups for i in group["params"]]
        by_number = dict(zip(order, self._params(), strict=True))
        group_of = {id(p): group for group in merged for p in group["params"]}
        known: dict[Any, Tensor] = {}
        state = {}
        for number, held in saved.items():
            p = by_number[int(number)]  # JSON's keys are strings
            state[p] = self._restored(p, held, group_of[id(p)], known)
        for own, group in zip(self.param_groups, merged, strict=True):
            own.update(group)
        for p in {*self.state, *state}:
            self._take_up(p, State(state.get(p, {})))
        for hook in self._called("load_state_dict_post"):
            hook(self)

    def _merged(self, own: Group, new: Mapping[str, Any]) -> Group:
        """A group with the settings that were saved."""
        names = {*self.defaults, *NOTES, *_LABELS, "params"}
        unknown = sorted({*new} - names - _SWITCHES)
        if unknown:
            raise ArgumentError(f"load_state_dict: {self._name} has no {', '.join(unknown)}")
        settings = {k: _like(own.get(k), _snapshot(v)) for k, v in new.items() if k in names}
        group = Group({**own, **settings, "params": own["params"]})
        rate = group["lr"]
        # a schedule that ends at 0 may end a rounding error below, and is resumed there
        self.check_group(group if isinstance(rate, Tensor) else Group({**group, "lr": abs(rate)}))
        return group

    def _restored(
        self, p: Tensor, held: Mapping[str, Any], group: Group, known: dict[Any, Tensor]
    ) -> dict[str, Any]:
        """What was saved of `p`, as tensors beside it. Equal step counts become one value again."""
        master = "master" in held
        weights = zeros_like(p, precise(p)) if master else p
        fresh = State()
        with untraced():
            self.make_state(weights, fresh, group, Shared(group))
        found: dict[str, Any] = {}
        for name, value in held.items():
            like = fresh.get(name)
            if not isinstance(value, Tensor) and not isinstance(like, Tensor):
                found[name] = value
            elif name == "step":
                count = tensor(value, dtypes.float32, p.device)
                found[name] = known.setdefault((count.item(), p.device), count).detach()
            else:
                like = like if isinstance(like, Tensor) else weights
                if isinstance(value, Tensor) and value.shape != like.shape:
                    owner = "its parameter" if like.shape == p.shape else "it should have"
                    raise ShapeError(
                        f"load_state_dict: {name} has shape {value.shape}, {owner} {like.shape}"
                    )
                found[name] = tensor(value, like.dtype, p.device)
        return found

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


@contextmanager
def swap_in_optimizer_params_and_state(
    optimizer: Optimizer,
    swapin_parameters: Mapping[str, Tensor],
    swapin_optim_state: Mapping[str, Any],
) -> Iterator[None]:
    """Let an optimiser work on other parameters, with another state, inside a `with` block.

    swapin_parameters   tensors by name, in the order of the optimiser's own
    swapin_optim_state  as `state_dict` gives it; its tensors get new values, numbers do not

    >>> import everygrad as eg
    >>> x, y = (eg.tensor([v], requires_grad=True) for v in (1.0, 5.0))
    >>> opt = eg.optim.SGD([x], lr=0.5)
    >>> y.grad = eg.ones((1,))
    >>> with eg.optim.swap_in_optimizer_params_and_state(opt, {"x": y}, opt.state_dict()):
    ...     opt.step()
    >>> x.item(), y.item()
    (1.0, 4.5)
    """
    name = "swap_in_optimizer_params_and_state"
    params = list(swapin_parameters.values())
    saved = swapin_optim_state["param_groups"]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    given = [len(group["params"]) for group in saved]
    if sizes != given or sum(sizes) != len(params):
        raise ArgumentError(
            f"{name}: {len(params)} parameters in groups of {given} do not fit "
            f"{optimizer._name}'s groups of {sizes}"
        )
    left = iter(params)
    groups = Counted()
    for own, new in zip(optimizer.param_groups, saved, strict=True):
        group = optimizer._merged(own, new)
        dict.__setitem__(group, "params", Counted(next(left) for _ in own["params"]))
        groups.append(group)
    order = [number for group in saved for number in group["params"]]
    held = swapin_optim_state["state"]
    state = {p: State(held.get(k, {})) for k, p in zip(order, params, strict=True)}
    before = optimizer.param_groups, optimizer.state
    try:
        optimizer.param_groups, optimizer.state = groups, state
        yield
    finally:
        optimizer.param_groups, optimizer.state = before


def _arguments(name: str, changed: Any) -> tuple[Any, Any]:
    """What a hook before a step returned: other arguments for it."""
    if isinstance(changed, tuple) and len(changed) == 2:
        return changed
    raise ArgumentError(
        f"{name}.step: a pre-hook returns None or (args, kwargs), got {type(changed).__name__}"
    )


def _unnamed(name: str, given: list[Any]) -> tuple[list[Any], list[str] | None]:
    """Parameters, and their names if they came as pairs, as from `named_parameters()`."""
    pairs = [isinstance(x, tuple) for x in given]
    if not any(pairs):
        return given, None
    if not all(pairs) or any(len(x) != 2 or not isinstance(x[0], str) for x in given):
        raise ArgumentError(f"{name}: params must all be tensors, or all (name, tensor) pairs")
    return [p for _, p in given], [n for n, _ in given]


def _master(p: Tensor, state: State) -> Tensor:
    """The float32 master copy of a half parameter, which follows it to another value."""
    if "master" not in state:
        with untraced():  # zeros serve: where p is something else, the copy takes it up now
            state["master"] = zeros_like(p, dtypes.float32)
    master: Tensor = state["master"]
    put(master, where(master.astype(p.dtype) == p, master, p.astype(dtypes.float32)))
    return master


def _snapshot(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _like(own: Any, value: Any) -> Any:
    """A saved setting: pairs that came back from JSON as lists are tuples again."""
    return tuple(value) if isinstance(own, tuple) and isinstance(value, list) else value
