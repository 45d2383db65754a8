"""LSTM and GRU as one node of a graph, with a derivative that is one node too.

ATen takes them apart step by step before a backend sees them. So they become ops of our own while
Dynamo's graph still names them: PyTorch can run these ops as well, should a graph be cut there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from everygrad.autograd.transforms.functional import vjp
from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.nn.recurrent import recurrent_layers
from everygrad.interop.torch.aten.registry import aten
from everygrad.interop.torch.exchange import from_tensor
from everygrad.ops.nn.recurrent import MODES

_FUNCTIONS: dict[Any, str] = {torch.lstm: "lstm", torch.gru: "gru"}
# of torch.lstm and torch.gru, after the parameters
_BIASES, _LAYERS, _DROPOUT, _TRAIN, _BOTH, _BATCH_FIRST = range(3, 9)


def keep_whole(module: GraphModule) -> None:
    """Make the recurrent layers of Dynamo's graph ops of ours, where nothing is drawn inside."""
    for node in list(module.graph.nodes):
        kind = _FUNCTIONS.get(node.target) if node.op == "call_function" else None
        if kind is not None and _is_plain(node):
            _replace(module, node, kind)
    module.recompile()


def _is_plain(node: Node) -> bool:
    """Whether all steps are there (no packed sequence), and dropout draws nothing."""
    if len(node.args) != 9 or node.kwargs:
        return False
    packed = isinstance(node.args[2], Node) or isinstance(node.args[1], Node) != (
        node.target is torch.gru
    )
    return not packed and not (node.args[_DROPOUT] and node.args[_TRAIN])


def _replace(module: GraphModule, node: Node, kind: str) -> None:
    x, states, params, *_ = node.args
    given = [states] if kind == "gru" else list(states)  # type: ignore[arg-type]
    options = (node.args[i] for i in (_BIASES, _LAYERS, _BOTH, _BATCH_FIRST))
    with module.graph.inserting_before(node):
        made = module.graph.call_function(
            torch.ops.everygrad.recurrent.default, (kind, x, given, params, *options)
        )
    made.meta.update(node.meta)
    node.replace_all_uses_with(made)
    module.graph.erase_node(node)


# --- the ops, as PyTorch runs them ---------------------------------------------------------------


def _theirs(found: Sequence[Tensor]) -> list[torch.Tensor]:
    return [torch.utils.dlpack.from_dlpack(t.detach(), copy=True) for t in found]


@torch.library.custom_op("everygrad::recurrent", mutates_args=())
def recurrent(
    kind: str,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    both: bool,
    batch_first: bool,
) -> list[torch.Tensor]:
    """The outputs of all steps, each state after the last one, and what is kept of each layer for
    the derivative; by our ops, since PyTorch keeps nothing of its own."""
    first, given = ([from_tensor(t) for t in some] for some in (states, params))
    return _theirs(forward(kind, from_tensor(x), first, given, biases, layers, both, batch_first))


@recurrent.register_fake
def _(
    kind: str,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    both: bool,
    batch_first: bool,
) -> list[torch.Tensor]:
    ways = 2 if both else 1
    found = [x.new_empty((*x.shape[:-1], states[0].shape[-1] * ways))]
    found += [s.new_empty(s.shape) for s in states]
    if _is_projected(params, layers * ways):
        return found
    if x.ndim == 2:
        steps, batch = x.shape[0], 1
    else:
        batch, steps = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
    kept = MODES[kind].kept * states[0].shape[-1]
    return [*found, *(x.new_empty((steps, batch, kept)) for _ in range(layers * ways))]


def _is_projected(params: Sequence[Any], count: int) -> bool:
    """Whether the weights of each of `count` layers are those of one whose hidden state has another
    width than its cells: it goes step by step, and keeps nothing."""
    return len(params) // count % 2 == 1


@torch.library.custom_op("everygrad::recurrent_backward", mutates_args=())
def recurrent_backward(
    gradients: Sequence[torch.Tensor],
    kept: Sequence[torch.Tensor],
    kind: str,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    both: bool,
    batch_first: bool,
) -> list[torch.Tensor]:
    """The gradients of the input, the states and the parameters; by our ops, since PyTorch records
    nothing inside of an op."""
    mine = [[from_tensor(t) for t in some] for some in (gradients, kept, states, params)]
    seeds, reserves, first, later = mine
    options = (biases, layers, both, batch_first)
    return _theirs(backward(seeds, reserves, kind, from_tensor(x), first, later, *options))


@recurrent_backward.register_fake
def _(
    gradients: Sequence[torch.Tensor],
    kept: Sequence[torch.Tensor],
    kind: str,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    both: bool,
    batch_first: bool,
) -> list[torch.Tensor]:
    return [t.new_empty(t.shape) for t in (x, *states, *params)]


def _note(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    kind, x, states, params, *options = inputs
    ctx.kind, ctx.count, ctx.options = kind, len(states), options
    ctx.params = len(params)
    ctx.save_for_backward(x, *states, *params, *output[1 + len(states) :])


def _backward(ctx: Any, gradients: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    end = 1 + ctx.count
    states, rest = rest[: ctx.count], rest[ctx.count :]
    params, kept = rest[: ctx.params], rest[ctx.params :]
    given = [g.contiguous() for g in gradients[:end]]
    made = recurrent_backward(given, kept, ctx.kind, x, states, params, *ctx.options)
    return (None, made[0], list(made[1:end]), list(made[end:]), None, None, None, None)


recurrent.register_autograd(_backward, setup_context=_note)


# --- the ops, as they run here -------------------------------------------------------------------


@aten("everygrad::recurrent.default")
def forward(
    kind: str, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], *options: Any
) -> list[Tensor]:
    out, finals, kept = _layers(kind, x, states, params, options)
    return [out, *finals, *kept]


def _layers(
    kind: str,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    options: Sequence[Any],
    kept: Sequence[Tensor] = (),
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    biases, layers, both, batch_first = options
    given = (biases, layers, 0.0, False, both, batch_first)
    return recurrent_layers(kind, x, states, params, *given, kept)


@aten("everygrad::recurrent_backward.default")
def backward(
    gradients: Sequence[Tensor],
    kept: Sequence[Tensor],
    kind: str,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    *options: Any,
) -> list[Tensor]:
    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        count = len(states)
        out, finals, _ = _layers(kind, x, rest[:count], rest[count:], options, kept)
        return (out, *finals)

    _, pull = vjp(run, x, *states, *params)
    return list(pull(tuple(gradients)))
