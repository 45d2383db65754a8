"""`eg.from_torch`: a PyTorch model as a Module here, with the same names and the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from everygrad.autograd import trees
from everygrad.core.context import intercepted, tracing
from everygrad.core.tensor import Tensor
from everygrad.dtypes import DType
from everygrad.errors import ArgumentError, DtypeError, MissingOpsError, ShapeError
from everygrad.interop.torch.effects import settle_checks
from everygrad.interop.torch.exchange import array_of, from_tensor
from everygrad.interop.torch.export import decomposed, export, in_modes, unwatched
from everygrad.interop.torch.graph import DTYPES, Program, Sizes, overload
from everygrad.interop.torch.versions import torch_name
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import tensor

pytree: Any = torch_name("torch.utils._pytree")
InputKind: Any = torch_name("torch.export.graph_signature.InputKind")
OutputKind: Any = torch_name("torch.export.graph_signature.OutputKind")
_EXPORTING = (
    RLock()
)  # torch.export puts its own tensors into a module, and patches PyTorch meanwhile
_TORCH_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}


class TorchPart(Module):
    """A module inside a PyTorch model: its weights and parts under PyTorch's names.

    A list of modules or of parameters is indexed as PyTorch's is. It runs only as a part of the
    whole model.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    if TYPE_CHECKING:  # names are PyTorch's, which no checker knows

        def __getattr__(self, name: str) -> Any: ...

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses: only the whole model was exported."""
        raise ArgumentError(
            f"{self._kind}: a part of a PyTorch model runs within the whole; give this part to "
            f"from_torch by itself"
        )

    def extra_repr(self) -> str:
        """PyTorch's class."""
        return self._kind

    def _items(self) -> list[Any]:
        held = vars(self)
        names = [n for n in held if n.isdecimal()]
        return [held[n] for n in sorted(names, key=int)]

    def __getitem__(self, index: int | slice) -> Any:
        return self._items()[index]

    def __len__(self) -> int:
        return len(self._items())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items())

    def __bool__(self) -> bool:
        return True


class _Constants:
    """Tensors that a graph holds: numbers, and the tensors made of them on each device."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        # arrays: a tensor that was made inside a trace, or moved there, would be no value outside
        self.arrays = {
            name: array_of(value.detach().cpu().resolve_conj().resolve_neg().clone())
            for name, value in found.items()
            if isinstance(value, torch.Tensor)
        }
        self.made: dict[tuple[str, str], Tensor] = {}

    def on(self, device: str, name: str) -> Tensor:
        """A constant on the device where the weights are now; made anew inside a trace, where what
        is kept would be a value of the trace's own."""
        if tracing.get() is not None:
            return tensor(self.arrays[name], device=device)
        if (name, device) not in self.made:
            self.made[name, device] = tensor(self.arrays[name], device=device)
        return self.made[name, device]


class _Exported(NamedTuple):
    """One exported graph, made ready, with what its inputs and outputs are."""

    program: Program
    inputs: list[tuple[Any, str, DType | None]]  # kind, name, and the dtype of a weight
    outputs: list[tuple[Any, str]]
    structure: Any  # of the outputs
    constants: _Constants
    held: _Constants  # of the graph itself


class _Source:
    """Where programs come from: PyTorch's module, or one exported program. Shared by copies."""

    def __init__(self, whole: Any, dynamic: bool, mode: bool | None = None) -> None:
        self.whole = whole
        self.dynamic = dynamic
        self.mode = mode  # of an exported program that does different things in train and eval
        self.programs: dict[Any, _Exported] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Source:
        return self


class TorchModule(TorchPart):
    """What `from_torch` gives: a PyTorch model whose graph runs on this library's ops.

    Each mode (train, eval) and each set of input shapes has a program of its own, exported when it
    is first needed; `programs` counts them.
    """

    def __init__(self, source: _Source, kind: str) -> None:
        super().__init__(kind)
        self._source = source

    @property
    def programs(self) -> int:
        """How many programs were exported: one for each mode and set of input shapes."""
        return len(self._source.programs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs, in the containers that PyTorch's module gives them in."""
        with unwatched():
            leaves, structure = pytree.tree_flatten((args, kwargs))
            exported = self._exported(leaves, structure)
        outputs = self._run(exported, leaves)
        with unwatched():
            return pytree.tree_unflatten(outputs, exported.structure)

    def _exported(self, leaves: list[Any], structure: Any) -> _Exported:
        source, flags = self._source, self._flags()
        key = (flags, repr(structure), tuple(map(_kind_of, leaves)))
        found = source.programs.get(key)
        if found is None:
            with _EXPORTING:
                found = source.programs.get(key) or self._made(key, leaves, structure)
                source.programs[key] = found
        return found

    def _made(self, key: Any, leaves: list[Any], structure: Any) -> _Exported:
        source = self._source
        if not isinstance(source.whole, torch.nn.Module):
            return _of_program(source.whole, leaves, structure)
        if source.programs and not source.dynamic:
            self._refuse_shapes(key)
        return self._export(leaves, structure)

    def _flags(self) -> tuple[bool, ...]:
        """The modes of all parts."""
        source, parts = self._source, list(self.modules())
        tracer = tracing.get() if intercepted() else None
        if tracer is not None:  # the parts do not run themselves, but are read
            for part in parts:
                tracer.met(part)
        flags = tuple([part.training for part in parts])
        if source.mode is not None and any(f is not source.mode for f in flags):
            was, cure = ("train", "train") if source.mode else ("eval", "eval")
            raise ArgumentError(
                f"from_torch: the program was exported in {was} mode and has no other; call "
                f"{cure}(), or give from_torch the module itself"
            )
        return flags

    def _refuse_shapes(self, key: Any) -> None:
        known = next(iter(self._source.programs))
        if known[1:] != key[1:]:
            raise ShapeError(
                f"from_torch: the model was exported for inputs {list(known[2])}, got "
                f"{list(key[2])}; pass dynamic=True to export it for every shape it is called with"
            )

    def _export(self, leaves: list[Any], structure: Any) -> _Exported:
        whole = self._source.whole
        examples = [_example(v) if isinstance(v, Tensor) else v for v in leaves]
        args, kwargs = pytree.tree_unflatten(examples, structure)
        modes = {name: part.training for name, part in self._walk()}
        with in_modes(whole, modes):
            exported = export(whole, args, kwargs)
        return _ready(exported, Sizes())

    def _tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for at, module in self._walk():
            held = vars(module)
            own = (*(n for n, v in held.items() if isinstance(v, Parameter)), *module._buffers)
            found |= {f"{at}.{n}" if at else n: held[n] for n in own}
        return found

    def _run(self, exported: _Exported, leaves: list[Any]) -> list[Any]:
        tensors = self._tensors()
        found = (t.device for t in (*tensors.values(), *leaves) if isinstance(t, Tensor))
        device = next(found, "cpu")
        given = iter(leaves)
        values: list[Any] = []
        for kind, name, dtype in exported.inputs:
            if kind is InputKind.USER_INPUT:
                values.append(next(given))
            elif kind is InputKind.TOKEN:
                values.append(None)
            elif kind is InputKind.CONSTANT_TENSOR:
                values.append(exported.constants.on(device, name))
            else:
                if tensors[name].dtype is not dtype:
                    raise DtypeError(
                        f"from_torch: {name} was {dtype} when the model was exported and is "
                        f"{tensors[name].dtype} now; change PyTorch's module and call from_torch"
                    )
                values.append(tensors[name])
        held = {name: exported.held.on(device, name) for name in exported.held.arrays}
        results = exported.program(values, held, device)
        outputs: list[Any] = []
        for (kind, name), value in zip(exported.outputs, results, strict=True):
            if kind is OutputKind.BUFFER_MUTATION:
                tensors[name].rebind(value.detach()._data, None)
            elif kind is OutputKind.USER_INPUT_MUTATION:
                at = exported.program.inputs.index(name)
                values[at][...] = value
            elif kind is not OutputKind.TOKEN:
                outputs.append(value)
        return outputs


def _kind_of(value: Any) -> Any:
    """What a program is made for: the shape and dtype of a tensor, any other value itself."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype.name
    if isinstance(value, torch.Tensor):
        raise ArgumentError(
            "from_torch: the model takes everygrad's tensors now; convert with eg.from_dlpack(x)"
        )
    if value is None or isinstance(value, bool | int | float | complex | str):
        return type(value).__name__, value
    raise ArgumentError(
        f"from_torch: the model takes tensors, numbers, text and containers of them, got "
        f"{type(value).__name__}; convert arrays with eg.asarray(x)"
    )


def _example(value: Tensor) -> torch.Tensor:
    if value.dtype not in _TORCH_DTYPES:
        raise DtypeError(f"from_torch: PyTorch has no {value.dtype}")
    return torch.zeros(value.shape, dtype=_TORCH_DTYPES[value.dtype])


# --- programs -------------------------------------------------------------------------------------


def _ready(exported: Any, sizes: Sizes) -> _Exported:
    signature = exported.graph_signature
    refused = [s.kind.name for s in signature.input_specs if s.kind not in _INPUTS]
    refused += [s.kind.name for s in signature.output_specs if s.kind not in _OUTPUTS]
    if refused:
        names = ", ".join(sorted(set(refused)))
        raise MissingOpsError("from_torch", {f"exported {names}": refused})
    settle_checks(exported.graph_module)
    program = Program(exported.graph_module, sizes)
    nodes = [n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"]
    dtypes = [DTYPES.get(n.dtype) if isinstance(n, torch.Tensor) else None for n in nodes]
    inputs = [
        (s.kind, s.target or s.arg.name, dtype)
        for s, dtype in zip(signature.input_specs, dtypes, strict=True)
    ]
    outputs = [(s.kind, s.target or "") for s in signature.output_specs]
    structure = exported.call_spec.out_spec
    _register(structure)
    constants, held = _Constants(exported.constants), _Constants(program.constants)
    return _Exported(program, inputs, outputs, structure, constants, held)


_INPUTS = frozenset(
    (
        *(InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER),
        *(InputKind.CONSTANT_TENSOR, InputKind.TOKEN),
    )
)
_OUTPUTS = frozenset(
    (
        *(OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION),
        *(OutputKind.USER_INPUT_MUTATION, OutputKind.TOKEN),
    )
)
_PLAIN = (tuple, list, dict, type(None))
_registered: set[type] = set()


def _register(structure: Any) -> None:
    """Let this library's transformations look into the containers that PyTorch was told about."""
    for part in structure.children():
        _register(part)
    kind = structure.type
    if structure.is_leaf() or not isinstance(kind, type) or kind in _PLAIN or kind in _registered:
        return
    if issubclass(kind, tuple):  # a namedtuple and its like: known without being told
        return
    _registered.add(kind)

    def flatten_one(value: Any) -> Any:
        return pytree.tree_flatten(value, is_leaf=lambda v: v is not value)

    def unflatten_one(spec: Any, children: Sequence[Any]) -> Any:
        return pytree.tree_unflatten(list(children), spec)

    try:
        trees.register(kind, flatten_one, unflatten_one)
    except ValueError:  # somebody else has told it already
        return


# --- exported programs ---------------------------------------------------------------------------


def _of_program(exported: Any, leaves: list[Any], structure: Any) -> _Exported:
    """An ExportedProgram for the sizes given; what it was not exported for is refused."""
    wanted = exported.call_spec.in_spec
    if repr(wanted) != repr(structure):
        raise ArgumentError(
            f"from_torch: the program takes arguments {wanted}, got {structure}; pass them as "
            f"torch.export was given them"
        )
    sizes = Sizes()
    nodes = [n for n in exported.graph.nodes if n.op == "placeholder"]
    kinds = exported.graph_signature.input_specs
    users = [n for n, s in zip(nodes, kinds, strict=True) if s.kind is InputKind.USER_INPUT]
    for node, value in zip(users, leaves, strict=True):
        said = node.meta.get("val")
        if isinstance(said, torch.Tensor):
            _fits(node.name, said, value)
        sizes.bind(said, value)
    for node, value in zip(users, leaves, strict=True):
        said = node.meta.get("val")
        if isinstance(said, torch.Tensor) and tuple(map(sizes, said.shape)) != value.shape:
            raise ShapeError(
                f"from_torch: {node.name} must be {tuple(said.shape)}, got {value.shape}; export "
                f"with dynamic_shapes to leave sizes open"
            )
    return _ready(exported, sizes)


# Ops that do different things in train and eval, and which argument says so.
_MODES = {
    **{"aten::dropout.default": 2, "aten::native_dropout.default": 2},
    **{"aten::feature_dropout.default": 2, "aten::alpha_dropout.default": 2},
    **{"aten::batch_norm.default": 5, "aten::_native_batch_norm_legit.default": 5},
    "aten::_native_batch_norm_legit_functional.default": 5,
}


def _mode_of(exported: Any) -> bool | None:
    """Whether a program was exported in train mode; None where nothing in it says so."""
    found: set[bool] = set()
    for node in exported.graph.nodes:
        name = overload(node.target) if node.op == "call_function" else ""
        if name in _MODES:
            found.add(bool(node.args[_MODES[name]]))
        elif "batch_norm_legit_no_training" in name:
            found.add(False)
    return found.pop() if len(found) == 1 else None


def _fits(name: str, said: torch.Tensor, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise ArgumentError(f"from_torch: {name} must be a Tensor, got {type(value).__name__}")
    if value.ndim != said.dim():
        raise ShapeError(f"from_torch: {name} must be {tuple(said.shape)}, got {value.shape}")
    if DTYPES[said.dtype] is not value.dtype:
        raise DtypeError(
            f"from_torch: {name} must be {DTYPES[said.dtype]}, got {value.dtype}; use astype()"
        )


# --- weights and names ---------------------------------------------------------------------------


class _Weights:
    """PyTorch's tensors as ours, one for each storage: what was tied stays tied."""

    def __init__(self, copy: bool) -> None:
        self.copy = copy
        self.made: dict[Any, Tensor] = {}

    def parameter(self, value: torch.Tensor) -> Parameter:
        def make() -> Tensor:
            floats = value.dtype.is_floating_point or value.dtype.is_complex
            return Parameter(from_tensor(value, self.copy), value.requires_grad and floats)

        return self._once(value, make)  # type: ignore[return-value]

    def buffer(self, value: torch.Tensor) -> Tensor:
        # always a copy: PyTorch's module writes its statistics in place whenever it runs
        return self._once(value, lambda: from_tensor(value, copy=True))

    def _once(self, value: torch.Tensor, make: Any) -> Tensor:
        if torch_name("torch.nn.parameter.is_lazy")(value):
            raise ArgumentError(
                "from_torch: the sizes of a lazy module's weights are not known before PyTorch's "
                "module has been called once"
            )
        if value.layout is not torch.strided:
            return make()  # which refuses it
        place = value.data_ptr() if value.numel() else id(value)
        key = (place, value.shape, value.stride(), value.dtype, str(value.device))
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]


def _grow(root: TorchModule, whole: torch.nn.Module, copy: bool) -> None:
    """The tree of names below a module, with its weights."""
    weights = _Weights(copy)
    parts: dict[int, TorchPart] = {id(whole): root}
    kept = whole.state_dict().keys()
    for path, module in whole.named_modules(remove_duplicate=False):
        first = id(module) not in parts
        part = parts.setdefault(id(module), TorchPart(type(module).__name__))
        if path:
            before, _, name = path.rpartition(".")
            above = root.get_submodule(before)
            above.add_module(name, part)
        if not first and path:
            continue
        part.training = module.training
        for name, p in module._parameters.items():
            part.register_parameter(name, None if p is None else weights.parameter(p))
        for name, b in module._buffers.items():
            whole_name = f"{path}.{name}" if path else name
            value = None if b is None else weights.buffer(b)
            part.register_buffer(name, value, persistent=whole_name in kept)


def _grow_from_names(root: TorchModule, exported: Any, copy: bool) -> None:
    """The tree of names of an exported program, with its weights."""
    weights = _Weights(copy)
    signature = exported.graph_signature
    everything = {**exported.constants, **exported.state_dict}
    for name in dict.fromkeys((*exported.state_dict, *signature.buffers)):
        value = everything[name]
        *path, last = name.split(".")
        part: Module = root
        for step in path:
            if step not in vars(part):
                part.add_module(step, TorchPart("Module"))
            part = vars(part)[step]
        if isinstance(value, torch.nn.Parameter):
            part.register_parameter(last, weights.parameter(value))
        else:
            persistent = name not in signature.non_persistent_buffers
            part.register_buffer(last, weights.buffer(value), persistent)


def made_from(
    model: Any, example_inputs: Any, example_kwargs: Any, *, dynamic: bool, copy: bool
) -> TorchModule:
    """What `calls.from_torch` gives."""
    exported = isinstance(model, torch_name("torch.export.ExportedProgram"))
    if not exported and not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"from_torch: takes a torch.nn.Module or an ExportedProgram, got {type(model).__name__}"
        )
    args = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
    kwargs = dict(example_kwargs or {})
    if exported:
        mode = _mode_of(model)
        root = TorchModule(_Source(decomposed(model), dynamic, mode), "ExportedProgram")
        _grow_from_names(root, model, copy)
        root.train(bool(mode))
        if not args and not kwargs:
            args, kwargs = model.example_inputs or ((), {})
    else:
        root = TorchModule(_Source(model, dynamic), type(model).__name__)
        _grow(root, model, copy)
    if args or kwargs:
        leaves, structure = pytree.tree_flatten((tuple(args), kwargs))
        root._exported([_as_ours(v) for v in leaves], structure)
    return root


def _as_ours(value: Any) -> Any:
    return from_tensor(value, copy=False) if isinstance(value, torch.Tensor) else value
