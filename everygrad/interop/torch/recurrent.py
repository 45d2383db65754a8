"""LSTM and GRU as one node of a graph, with a derivative that is one node too.

ATen takes them apart step by step before a backend sees them. So they become ops of our own while
Dynamo's graph still names them: PyTorch can run these ops as well, should a graph be cut there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from everygrad.autograd.transforms.functional import vjp
from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.registry import aten
from everygrad.interop.torch.aten.table import HANDLERS
from everygrad.interop.torch.exchange import from_tensor

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


def _run(
    kind: str,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    *options: Any,
) -> Sequence[torch.Tensor]:
    biases, layers, both, batch_first = options
    function: Any = torch.lstm if kind == "lstm" else torch.gru
    first = list(states) if kind == "lstm" else states[0]
    found: Sequence[torch.Tensor] = function(
        x, first, list(params), biases, layers, 0.0, False, both, batch_first
    )
    return found


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
    """The outputs of all steps, and each state after the last one."""
    made = _run(kind, x, states, params, biases, layers, both, batch_first)
    return [t.contiguous().clone() for t in made]


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
    width = states[0].shape[-1] * (2 if both else 1)
    return [x.new_empty((*x.shape[:-1], width)), *(s.new_empty(s.shape) for s in states)]


@torch.library.custom_op("everygrad::recurrent_backward", mutates_args=())
def recurrent_backward(
    gradients: Sequence[torch.Tensor],
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
    mine = [[from_tensor(t) for t in some] for some in (gradients, states, params)]
    seeds, first, later = mine
    options = (biases, layers, both, batch_first)
    made = backward(seeds, kind, from_tensor(x), first, later, *options)
    return [torch.utils.dlpack.from_dlpack(t.detach(), copy=True) for t in made]


@recurrent_backward.register_fake
def _(
    gradients: Sequence[torch.Tensor],
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
    ctx.save_for_backward(x, *states, *params)


def _backward(ctx: Any, gradients: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    states, params = rest[: ctx.count], rest[ctx.count :]
    given = [g.contiguous() for g in gradients]
    made = recurrent_backward(given, ctx.kind, x, states, params, *ctx.options)
    end = 1 + ctx.count
    return (None, made[0], list(made[1:end]), list(made[end:]), None, None, None, None)


recurrent.register_autograd(_backward, setup_context=_note)


# --- the ops, as they run here -------------------------------------------------------------------


@aten("everygrad::recurrent.default")
def forward(
    kind: str, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], *options: Any
) -> list[Tensor]:
    biases, layers, both, batch_first = options
    layer: Callable[..., Sequence[Tensor]] = HANDLERS[f"aten::{kind}.input"].function
    first = states if kind == "lstm" else states[0]
    return list(layer(x, first, params, biases, layers, 0.0, False, both, batch_first))


@aten("everygrad::recurrent_backward.default")
def backward(
    gradients: Sequence[Tensor],
    kind: str,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    *options: Any,
) -> list[Tensor]:
    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        count = len(states)
        return tuple(forward(kind, x, rest[:count], rest[count:], *options))

    _, pull = vjp(run, x, *states, *params)
    return list(pull(tuple(gradients)))
