"""Recurrent layers by PyTorch's cells, step by step, and their gradients by its autograd."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F


def _run(gx: Any, start: Any, w: Any, b: Any, mode: str) -> tuple[Any, list[Any], list[Any]]:
    """Everything each step makes, and the leaves whose gradients are wanted: the two parts of the
    gates at each step."""
    hidden = w.shape[1]
    state, outside, inside, kept = list(start.split(hidden, -1)), [], [], []
    for x in gx:
        own = x.detach().requires_grad_()
        linear = F.linear(state[0], w, b)
        part = torch.zeros_like(linear, requires_grad=True)
        gh = linear + part
        outside.append(own)
        inside.append(part)
        if mode == "lstm":
            i, f, g, o = (own + gh).split(hidden, -1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            c = f * state[1] + i * g
            made = [o * c.tanh(), c, i, f, g, o]
        elif mode == "gru":
            (xr, xz, xn), (hr, hz, hn) = own.split(hidden, -1), gh.split(hidden, -1)
            r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
            n = (xn + r * hn).tanh()
            made = [(1 - z) * n + z * state[0], r, z, n, hn]
        else:
            made = [getattr(own + gh, mode)()]
        kept.append(torch.cat(made, -1))
        state = made[: len(state)]
    return torch.stack(kept), outside, inside


def _tensors(*arrays: Any) -> list[Any]:
    return [torch.from_numpy(np.asarray(a).copy()) for a in arrays]


def rnn_reserve(gx: Any, start: Any, w: Any, b: Any, mode: str = "lstm") -> Any:
    return _run(*_tensors(gx, start, w, b), mode)[0].detach().numpy()


def rnn_sequence(gx: Any, start: Any, w: Any, b: Any, mode: str = "lstm") -> Any:
    return rnn_reserve(gx, start, w, b, mode)[..., : start.shape[1]]


def rnn_grads(g: Any, gx: Any, start: Any, w: Any, b: Any, mode: str = "lstm") -> Any:
    g, gx, start, w, b = _tensors(g, gx, start, w, b)
    begin = start.requires_grad_()
    kept, outside, inside = _run(gx, begin, w, b, mode)
    grads = torch.autograd.grad((kept[..., : g.shape[2]] * g).sum(), [begin, *outside, *inside])
    first, own, hidden = grads[0], grads[1 : 1 + len(gx)], grads[1 + len(gx) :]
    size, n = w.shape[1], gx.shape[1]
    last = first
    if mode == "gru":
        own = tuple(torch.cat([h, x[:, 2 * size :]], -1) for x, h in zip(own, hidden, strict=True))
    width = own[0].shape[-1]
    last = torch.cat([last, torch.zeros(n, width - last.shape[-1], dtype=last.dtype)], -1)
    return torch.stack([*own, last]).numpy()


def _stepped(gx: Any, gh: Any, state: Any, mode: str) -> list[Any]:
    """The states after one step."""
    width = state.shape[-1]
    if mode == "lstm":
        i, f, g, o = (gx + gh).split(width, -1)
        c = f.sigmoid() * state + i.sigmoid() * g.tanh()
        return [o.sigmoid() * c.tanh(), c]
    (xr, xz, xn), (hr, hz, hn) = gx.split(width, -1), gh.split(width, -1)
    z = (xz + hz).sigmoid()
    return [(1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh() + z * state]


def rnn_step(gx: Any, gh: Any, state: Any, mode: str) -> Any:
    return torch.cat(_stepped(*_tensors(gx, gh, state), mode)).numpy()


def rnn_step_grads(g: Any, gx: Any, gh: Any, state: Any, mode: str) -> Any:
    g, *leaves = _tensors(g, gx, gh, state)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    found = torch.autograd.grad((torch.cat(_stepped(*leaves, mode)) * g).sum(), leaves)
    kept = found[1:] if mode == "lstm" else found
    return torch.cat([d.reshape(-1) for d in kept]).numpy()
