"""The Module: tensors and other modules under names, and a forward function.

A module's parameters and children are its attributes of type Parameter and Module; nothing else is
kept beside them, so nothing can fall out of step. Buffers are tensors whose names were registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from itertools import chain
from typing import Any, ClassVar, Self, TypeVar

from everygrad import dtypes
from everygrad._jit.guards import same
from everygrad.autograd.graph import HookHandle
from everygrad.autograd.modes import no_grad
from everygrad.autograd.transform_scope import inside
from everygrad.core.context import intercepted, tracing
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError
from everygrad.nn.functions.forward_words import WORDS, in_our_words
from everygrad.nn.functions.module_hooks import BackwardWatch, ModuleHooks
from everygrad.nn.functions.module_state import LoadedKeys, StateFaults, entries_below, faults_of
from everygrad.nn.parameter import Buffer, Parameter, UninitializedBuffer, UninitializedParameter
from everygrad.ops.python.conversion import moved
from everygrad.ops.python.creation import tensor, zeros_like

T = TypeVar("T")


class Module:
    """The base of all layers and models: subclasses set attributes and define `forward`.

    >>> import everygrad as eg
    >>> class Scale(eg.nn.Module):
    ...     def __init__(self, size):
    ...         super().__init__()
    ...         self.factor = eg.nn.Parameter(eg.ones((size,)))
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> [name for name, p in Scale(3).named_parameters()]
    ['factor']
    """

    changes = 0  # of attributes and hooks of any module: a compiled function looks again then
    names_state: ClassVar[bool] = False  # whether it answers for the state of all modules inside
    compiled: ClassVar[Callable[[Any, Any], Any]]  # what `eg.jit` makes of one
    training: bool
    _buffers: dict[str, bool]  # the name of each buffer, and whether state_dict holds it
    _hooks: ModuleHooks
    _hooked: bool  # whether there are any: asked at every call

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # here, so that a subclass that forgets super().__init__() works all the same
        self = super().__new__(cls)
        vars(self).update(training=True, _buffers={}, _hooks=ModuleHooks(), _hooked=False)
        return self

    def __init__(self) -> None:
        pass

    # --- calling ---------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; call the module itself, which also runs its hooks."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward(); a Module needs one")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if intercepted() and (tracer := tracing.get()) is not None:
            tracer.met(self)
        if kwargs and not WORDS.keys().isdisjoint(kwargs):
            kwargs = in_our_words(type(self).forward, kwargs)
        if not self._hooked:
            return self.forward(*args, **kwargs)
        return self._call_with_hooks(args, kwargs)

    def _call_with_hooks(self, args: Any, kwargs: dict[str, Any]) -> Any:
        hooks = self._hooks
        for hook in hooks.of("forward_pre"):
            changed = hook(self, args, kwargs) if hook.with_kwargs else hook(self, args)
            if changed is None:
                continue
            if hook.with_kwargs:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise ArgumentError(
                        "register_forward_pre_hook: a hook with kwargs must return None or a pair "
                        f"(args, kwargs), got {type(changed).__name__}"
                    )
                args, kwargs = changed
            else:
                args = changed if isinstance(changed, tuple) else (changed,)
        watch = BackwardWatch(self, hooks) if hooks.has_backward else None
        if watch is not None:
            args = watch.enter(args)
        pending = [h for h in hooks.of("forward") if h.always_call]
        try:
            out = self.forward(*args, **kwargs)
        except BaseException:
            for hook in pending:
                hook(self, args, *([kwargs] if hook.with_kwargs else []), None)
            raise
        for hook in hooks.of("forward"):
            given = (args, kwargs, out) if hook.with_kwargs else (args, out)
            changed = hook(self, *given)
            out = out if changed is None else changed
        return out if watch is None else watch.leave(out)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call `hook(module, args)` before each forward; a value it returns replaces args.

        `with_kwargs` calls `hook(module, args, kwargs)`, which may return a pair of new ones;
        `prepend` puts it before the others.
        """
        return self._hooks.add(self, "forward_pre", hook, prepend, with_kwargs)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> HookHandle:
        """Call `hook(module, args, out)` after each forward; a value it returns replaces out.

        `with_kwargs` calls `hook(module, args, kwargs, out)`; `always_call` calls it, with None for
        out, also where forward raises.
        """
        return self._hooks.add(self, "forward", hook, prepend, with_kwargs, always_call)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call `hook(module, grad_input, grad_output)` when a backward pass has come through.

        Both are tuples, one entry for each positional tensor, None where no gradient is wanted; a
        tuple (or a tensor) it returns replaces grad_input.

        >>> import everygrad as eg
        >>> layer, seen = eg.nn.Linear(2, 1), []
        >>> handle = layer.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].shape))
        >>> layer(eg.ones((3, 2))).sum().backward()
        >>> seen
        [(3, 1)]
        """
        return self._hooks.add(self, "backward", hook, prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> HookHandle:
        """Call `hook(module, grad_output)` before a backward pass goes through the module; a value
        it returns replaces grad_output."""
        return self._hooks.add(self, "backward_pre", hook, prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """`register_full_backward_hook` under its older name."""
        return self.register_full_backward_hook(hook)

    # --- attributes ------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        held = vars(self).get(name)
        if isinstance(value, Buffer) and name not in self._buffers:
            self._check_name("register_buffer", name)
            self._buffers[name] = value.persistent
        if isinstance(held, Parameter) and not (value is None or isinstance(value, Parameter)):
            raise ArgumentError(
                f"{type(self).__name__}.{name} is a Parameter, got {type(value).__name__}; "
                f"assign nn.Parameter(...), or None to take it away"
            )
        if name in self._buffers and not (value is None or isinstance(value, Tensor)):
            raise ArgumentError(
                f"{type(self).__name__}.{name} is a buffer, got {type(value).__name__}; "
                f"assign a Tensor or None"
            )
        if (name in self._buffers or isinstance(held, Parameter)) and (
            around := inside()
        ) is not None:
            around.changing(self, name, held)
        super().__setattr__(name, value)
        Module.changes += 1

    def fingerprint(self) -> tuple[Any, ...]:
        """What a compiled function takes for granted of this module: its attributes and hooks."""
        own = [(k, _Held(v)) for k, v in vars(self).items() if k not in ("_hooks", "_hooked")]
        return (*own, *self._hooks.names())

    def __delattr__(self, name: str) -> None:
        Module.changes += 1
        super().__delattr__(name)
        self._buffers.pop(name, None)

    def _check_name(self, what: str, name: str) -> None:
        if not name or "." in name:
            raise ArgumentError(f"{what}: {name!r} is no name: it must be text without dots")
        if hasattr(self, name) and not isinstance(vars(self).get(name), Parameter | Module):
            raise ArgumentError(f"{what}: {type(self).__name__} already has an attribute {name!r}")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter under a name; None keeps the name free for one."""
        self._check_name("register_parameter", name)
        if param is not None and not isinstance(param, Parameter):
            raise ArgumentError(
                f"register_parameter: {name!r} must be a Parameter or None, "
                f"got {type(param).__name__}; wrap the tensor in nn.Parameter()"
            )
        setattr(self, name, param)

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but not trained; `state_dict` holds it if persistent."""
        if name not in self._buffers:
            self._check_name("register_buffer", name)
        if isinstance(value, Parameter) or not (value is None or isinstance(value, Tensor)):
            raise ArgumentError(
                f"register_buffer: {name!r} must be a plain Tensor or None, "
                f"got {type(value).__name__}"
            )
        self._buffers[name] = persistent
        setattr(self, name, value)

    def add_module(self, name: str, module: Module) -> None:
        """Add a child under a name that need not be a Python identifier."""
        self._check_name("add_module", name)
        if not isinstance(module, Module):
            raise ArgumentError(
                f"add_module: {name!r} must be a Module, got {type(module).__name__}"
            )
        setattr(self, name, module)

    def _own(self, kind: type[T]) -> list[tuple[str, T]]:
        return [(name, value) for name, value in vars(self).items() if isinstance(value, kind)]

    def _own_buffers(self) -> list[tuple[str, Tensor]]:
        found = [(name, vars(self)[name]) for name in self._buffers]
        return [(name, value) for name, value in found if value is not None]

    # --- walking ---------------------------------------------------------------------------------

    def _walk(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it; one that is shared comes once for each of its names."""
        yield prefix, self
        for name, child in self._own(Module):
            yield from child._walk(_joined(prefix, name))

    def _wrapped(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """The topmost modules below that answer for the state of all inside them."""
        for name, child in self._own(Module):
            at = _joined(prefix, name)
            if child.names_state:
                yield at, child
            else:
                yield from child._wrapped(at)

    def _answered(self, prefix: str) -> Iterator[tuple[str, Module]]:
        """`_walk` without those modules."""
        yield prefix, self
        for name, child in self._own(Module):
            if not child.names_state:
                yield from child._answered(_joined(prefix, name))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, parents first, each once."""
        return _once(self._walk(prefix))

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules that are attributes of this one, each once."""
        return _once(self._own(Module))

    def children(self) -> Iterator[Module]:
        """The modules that are attributes of this one, each once."""
        return (module for _, module in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Each parameter once, under the first of its names; without children if not `recurse`."""
        homes = self._answered(prefix) if recurse else [(prefix, self)]
        own = ((_joined(at, n), p) for at, m in homes for n, p in m._own(Parameter))
        apart = self._wrapped(prefix) if recurse else ()
        return _once(chain(own, *(m.named_parameters(at) for at, m in apart)))

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Each parameter once: what an optimiser takes."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Each buffer once, under the first of its names; without children if not `recurse`."""
        homes = self._answered(prefix) if recurse else [(prefix, self)]
        own = ((_joined(at, n), b) for at, m in homes for n, b in m._own_buffers())
        apart = self._wrapped(prefix) if recurse else ()
        return _once(chain(own, *(m.named_buffers(at) for at, m in apart)))

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Each buffer once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module that a name such as "layers.0.linear" means; "" is this one."""
        found: Any = self
        for step in target.split(".") if target else ():
            found = vars(found).get(step)
            if not isinstance(found, Module):
                known = ", ".join(n for n, _ in self.named_modules() if n) or "none"
                raise ArgumentError(f"get_submodule: no module {target!r}; there are: {known}")
        return found

    def _named(self, what: str, target: str, known: dict[str, Any]) -> Any:
        if target not in known:
            near = ", ".join(get_close_matches(target, known)) or "none is near"
            raise ArgumentError(f"{what}: no {target!r} in {type(self).__name__}; nearest: {near}")
        return known[target]

    def get_parameter(self, target: str) -> Parameter:
        """The parameter that a name such as "layers.0.weight" means."""
        held: Parameter = self._named("get_parameter", target, dict(self.named_parameters()))
        return held

    def get_buffer(self, target: str) -> Tensor:
        """The buffer that a name such as "norm.running_mean" means."""
        held: Tensor = self._named("get_buffer", target, dict(self.named_buffers()))
        return held

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on every module below and then on this one; returns the module."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # --- changing all at once --------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Put every module into training mode, or into evaluation mode if not `mode`."""
        if not isinstance(mode, bool):
            raise ArgumentError(f"train: mode must be True or False, got {mode!r}")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Put every module into evaluation mode."""
        return self.train(False)

    def requires_grad_(self, value: bool = True) -> Self:
        """Freeze (False) or thaw (True) every parameter."""
        for p in self.parameters():
            p.requires_grad_(value)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or make them zeros if not `set_to_none`."""
        for p in self.parameters():
            p.grad = None if set_to_none or p.grad is None else zeros_like(p)

    def to(
        self,
        device: Any = None,
        dtype: Any = None,
        non_blocking: Any = False,
        *,
        memory_format: Any = None,
    ) -> Self:
        """Move everything to a device, and floating-point tensors to a dtype; returns the module.

        A dtype, or its name, may come first, and a tensor, to be where it is. Optimisers keep
        working: a parameter stays the same object. The last two change nothing, as for tensors.
        """
        if isinstance(device, Tensor):
            device, dtype = device.device, dtype or device.dtype
        if isinstance(dtype, bool):  # to(device, non_blocking)
            dtype = None
        if dtypes.names_dtype(device) and dtype is None:
            device, dtype = None, device
        wanted = None if dtype is None else dtypes.as_dtype(dtype)
        if wanted is not None and not wanted.is_differentiable:
            raise DtypeError(f"to: parameters must be floating point, not {wanted}")

        kept = [*self.parameters(), *self.buffers()]
        trained = [p for p in self.parameters() if p.grad is not None]
        with no_grad():  # all of it first: a failure halfway must change nothing
            news = _moved([*kept, *[p.grad for p in trained if p.grad is not None]], device, wanted)
        for t, new in zip(kept, news, strict=False):
            t.rebind(new._data, t._node)
        for p, g in zip(trained, news[len(kept) :], strict=True):
            p.grad = g
        return self

    def float(self) -> Self:
        """Floating-point tensors to float32."""
        return self.to(dtype=dtypes.float32)

    def double(self) -> Self:
        """Floating-point tensors to float64."""
        return self.to(dtype=dtypes.float64)

    def half(self) -> Self:
        """Floating-point tensors to float16."""
        return self.to(dtype=dtypes.float16)

    def bfloat16(self) -> Self:
        """Floating-point tensors to bfloat16."""
        return self.to(dtype=dtypes.bfloat16)

    def cpu(self) -> Self:
        """Everything to the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | str | None = None) -> Self:
        """Everything to a CUDA device, the first by default."""
        return self.to(device if isinstance(device, str) else f"cuda:{device or 0}")

    # --- saving and loading ----------------------------------------------------------------------

    def _state(self, prefix: str = "") -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for at, module in self._answered(prefix):
            kept = [(n, b) for n, b in module._own_buffers() if module._buffers[n]]
            held = (*module._own(Parameter), *kept)
            found |= {_joined(at, n): t for n, t in held if not _waits(t)}
        return found

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """The values of all parameters and persistent buffers by name.

        It is a snapshot: training on does not change it.

        >>> import everygrad as eg
        >>> {k: v.shape for k, v in eg.nn.Linear(3, 2).state_dict().items()}
        {'weight': (2, 3), 'bias': (2,)}
        """
        found = {name: t.detach() for name, t in self._state(prefix).items()}
        for at, module in self._wrapped(prefix):
            found |= {_joined(at, name): t for name, t in module.state_dict().items()}
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadedKeys:
        """Take the values from `state_dict`: tensors or NumPy arrays, cast to the dtypes here.

        Names missing on either side raise unless `strict` is False; shapes must always fit. If it
        raises, nothing has changed.
        """
        for at, module in list(self._walk()):
            module.before_loading(state_dict, _joined(at, "") if at else "")
        own = self._state()
        faults = self.state_faults(state_dict)
        faults.refuse(f"load_state_dict: {type(self).__name__}", strict)
        news = [
            (t, tensor(state_dict[k], t.dtype, t.device)) for k, t in own.items() if k in state_dict
        ]
        for t, new in news:
            t.rebind(new._data, t._node)
        for at, module in self._wrapped():
            module.load_state_dict(entries_below(at, state_dict), strict)
        return LoadedKeys(faults.missing, faults.unexpected)

    def load_hf(
        self, folder: Any, rename: Any = None, *, strict: bool = True, dtype: Any = None
    ) -> Self:
        """Take the weights from a Hugging Face folder, or a safetensors file; returns the module.

        `rename` says what the folder's names are called here: a table of beginnings and parts of
        names (None leaves entries out), or a function of a name. Values are cast to the dtypes
        here, to `dtype`, or not at all with dtype="file". All that does not fit is named at once,
        and then nothing has changed.

        >>> import everygrad as eg, tempfile
        >>> file = tempfile.mkdtemp() + "/model.safetensors"
        >>> eg.save(file, {"head.kernel": eg.ones((2, 3)), "head.bias": eg.ones((2,))})
        >>> layer = eg.nn.Linear(3, 2).load_hf(file, {"head.": "", "kernel": "weight"})
        >>> layer(eg.ones((3,))).tolist()
        [4.0, 4.0]
        """
        files = import_module("everygrad.io.hugging_face")
        files.load_hf(self, folder, rename, strict=strict, dtype=dtype)
        return self

    def state_faults(self, state_dict: Mapping[str, Any]) -> StateFaults:
        """All that keeps `load_state_dict` from taking `state_dict`, found without a change.

        >>> import everygrad as eg
        >>> eg.nn.Linear(3, 2).state_faults({"weight": eg.ones((2, 2))}).missing
        ['bias']
        """
        apart = list(self._wrapped())
        inside = {k for at, _ in apart for k in state_dict if k.startswith(f"{at}.")}
        outside = {k: v for k, v in state_dict.items() if k not in inside}
        faults = faults_of({name: t.shape for name, t in self._state().items()}, outside)
        for at, module in apart:
            more = module.state_faults(entries_below(at, state_dict))
            faults.missing.extend(_joined(at, k) for k in more.missing)
            faults.unexpected.extend(_joined(at, k) for k in more.unexpected)
            faults.shapes.update({_joined(at, k): how for k, how in more.shapes.items()})
            faults.kinds.update({_joined(at, k): how for k, how in more.kinds.items()})
        return faults

    def values_changed(self) -> None:
        """Called where parameters were given values from outside, as by a checkpoint or averaging:
        a module that keeps anything made of them makes it anew."""

    def before_loading(self, state: Mapping[str, Any], prefix: str) -> None:
        """Called before `load_state_dict` compares: lazy modules take their shapes from it."""

    # --- showing ---------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """The part of `repr` between the parentheses: a layer's own settings."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = [f"({n}): " + repr(m).replace("\n", "\n  ") for n, m in self._own(Module)]
        if not lines:
            return f"{type(self).__name__}({extra})"
        body = "\n  ".join([extra, *lines] if extra else lines)
        return f"{type(self).__name__}(\n  {body}\n)"


class _Held:
    """Equal around what a function cannot tell apart: numbers by value, the rest by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Held):
            return False
        return same(self.value, other.value)

    __hash__ = object.__hash__


def _moved(tensors: list[Tensor], device: Any, dtype: Any) -> list[Tensor]:
    """The tensors on a device, and in a dtype where they are floating point."""
    news: list[Tensor] = [t.to(None, dtype if t.dtype.is_differentiable else None) for t in tensors]
    if device is None:
        return news
    there = iter(moved([t for t in news if t.device != device], device))
    return [t if t.device == device else next(there) for t in news]


def _waits(t: Tensor) -> bool:
    """Whether a tensor of a lazy module has no shape yet."""
    return isinstance(t, UninitializedParameter | UninitializedBuffer)


def _joined(prefix: str, name: str) -> str:
    if not prefix:
        return name
    return prefix + name if prefix.endswith(".") else f"{prefix}.{name}"


def _once(named: Any) -> Iterator[tuple[str, Any]]:
    """The pairs whose value did not come before under another name."""
    seen: set[int] = set()
    for name, value in named:
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value
