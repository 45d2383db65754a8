"""The steps that are interrupted: what a user does with everygrad, small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import everygrad as eg
from devtools.drills.interrupting import State, Step, array
from everygrad import nn


def data(device: str, *shape: int, seed: int = 0) -> Any:
    return eg.tensor(
        np.random.default_rng(seed).normal(size=shape).astype(np.float32), device=device
    )


class Pure(Step):
    """A function of constants: nothing changes but, perhaps, the gradients of its leaves."""

    def __init__(self, fn: Callable[..., Any], inputs: list[Any], leaves: list[Any]) -> None:
        self.fn, self.inputs, self.leaves = fn, inputs, leaves

    def run(self) -> Any:
        for x in self.leaves:
            x.grad = None
        return self.fn(*self.inputs)

    def state(self) -> State:
        return {}


class Gradients(Pure):
    """Gradients that add up from call to call: all of them, or none."""

    def run(self) -> Any:
        return self.fn(*self.inputs)

    def state(self) -> State:
        return {str(i): array(x.grad) for i, x in enumerate(self.leaves)}

    def load(self, state: State) -> None:
        for i, x in enumerate(self.leaves):
            held = state[str(i)]
            x.grad = None if held is None else eg.tensor(held, device=x.device)


class Training(Step):
    """A model, an optimiser, and a step of both."""

    def __init__(self, device: str, optimiser: str, size: int, jit: bool, dropout: bool) -> None:
        self.whole = jit
        self.device = device
        eg.manual_seed(3)
        parts = [nn.Linear(6, size), nn.Tanh(), *([nn.Dropout(0.3)] if dropout else [])]
        self.model = nn.Sequential(*parts, nn.BatchNorm1d(size), nn.Linear(size, 3))
        self.model.to(device)
        make = {
            "sgd": lambda p: eg.optim.SGD(p, lr=0.01, momentum=0.9),
            "adamw": lambda p: eg.optim.AdamW(p, lr=0.01),
        }[optimiser]
        self.optimiser = make(self.model.parameters())
        self.x, self.y = data(device, 5, 6), data(device, 5, 3, seed=1)
        self.step = eg.jit(self.train) if jit else self.train

    def train(self, x: Any, y: Any) -> Any:
        self.optimiser.zero_grad()
        loss = ((self.model(x) - y) ** 2).mean()
        loss.backward()
        self.optimiser.step()
        return loss

    def run(self) -> Any:
        return [self.step(self.x, self.y)]

    def tensors(self) -> dict[str, Any]:
        found = dict(self.model.named_parameters())
        found.update({f"buffer {k}": v for k, v in self.model.named_buffers()})
        for i, p in enumerate(self.model.parameters()):
            for k, v in self.optimiser.state.get(p, {}).items():
                if isinstance(v, eg.Tensor):
                    found[f"{k} {i}"] = v
        return found

    def state(self) -> State:
        found = {k: array(v) for k, v in self.tensors().items()}
        if self.whole:  # otherwise zero_grad and backward are steps of their own
            found.update({f"grad {k}": array(p.grad) for k, p in self.model.named_parameters()})
        found["random"] = eg.default_generator.get_state()
        return found

    def load(self, state: State) -> None:
        with eg.no_grad():
            for k, v in self.tensors().items():
                v.rebind(eg.tensor(state[k], device=self.device)._data, v._node)
        for k, p in self.model.named_parameters():
            held = state.get(f"grad {k}")
            p.grad = None if held is None else eg.tensor(held, device=self.device)
        eg.default_generator.set_state(state["random"])


class Captured(Step):
    """A compiled function that reads a tensor from outside, which has another array each time."""

    whole = False  # `run` is several lines of Python

    def __init__(self, device: str) -> None:
        self.arrays = [data(device, 50, seed=i) for i in range(4)]
        self.w, self.x = self.arrays[0].detach(), data(device, 50, seed=9)
        self.f = eg.jit(lambda x: eg.tanh(x * self.w) + self.w)
        self.turn = 0

    def run(self) -> Any:
        out = [self.f(self.x)]
        self.turn += 1
        self.w.rebind((self.arrays[self.turn % 4] * float(self.turn))._data, None)
        return out

    def state(self) -> State:
        return {"turn": np.array(self.turn), "w": array(self.w)}

    def load(self, state: State) -> None:
        self.turn = int(state["turn"])
        self.w.rebind(eg.tensor(state["w"], device=self.w.device)._data, None)


class Written(Step):
    """x[i] = v and its kin."""

    whole = False

    def __init__(self, device: str) -> None:
        self.device = device
        self.v = data(device, 5, seed=2)
        self.written = [data(device, 6, 5, seed=i) for i in range(3)] + [data(device, 300, 400)]

    def run(self) -> Any:
        x, y, z, large = self.written
        x[2] = self.v + x[1] * 0.5
        y += self.v * 0.25
        z[1:3, ::2] = z[2:4, ::2] * 0.5
        large *= 0.99

    def state(self) -> State:
        return {str(i): array(x) for i, x in enumerate(self.written)}

    def load(self, state: State) -> None:
        self.written = [eg.tensor(x, device=self.device) for x in state.values()]


def _leaf(device: str, *shape: int, seed: int = 0) -> Any:
    x = data(device, *shape, seed=seed)
    return x.requires_grad_()


def _forward(x: Any, w: Any, b: Any) -> Any:
    h = eg.tanh(x @ w + b)
    return (eg.softmax(h * w.sum(axis=0), axis=-1) * h.exp()).sum() + (b * b).mean()


def _gradients(device: str, size: int = 4, **how: Any) -> Step:
    x, w, b = data(device, 3, 5), _leaf(device, 5, size, seed=1), _leaf(device, size, seed=2)
    return Gradients(lambda *given: _forward(*given).backward(**how), [x, w, b], [w, b])


def _inner(device: str) -> Step:
    """backward to a result as well as to leaves."""
    x, w, b = data(device, 3, 5), _leaf(device, 5, 4, seed=1), _leaf(device, 4, seed=2)

    def fn(x: Any, w: Any, b: Any) -> Any:
        h = w * 2.0
        _forward(x, h, b).backward(inputs=[h, b])
        return h.grad

    return Gradients(fn, [x, w, b], [b])


def _second(device: str) -> Step:
    x, w, b = data(device, 3, 5), _leaf(device, 5, 4, seed=1), _leaf(device, 4, seed=2)

    def fn(*given: Any) -> Any:
        (g,) = eg.autograd.grad(_forward(*given), [w], create_graph=True)
        (g * g).sum().backward()

    return Gradients(fn, [x, w, b], [w, b])


def _compiled_backward(device: str) -> Step:
    x, w, b = data(device, 3, 5), _leaf(device, 5, 4, seed=1), _leaf(device, 4, seed=2)
    f = eg.jit(_forward)
    return Gradients(lambda *given: f(*given).backward(), [x, w, b], [w, b])


def _transforms(device: str) -> Step:
    x, w, b = data(device, 3, 5), data(device, 5, 4, seed=1), data(device, 4, seed=2)

    def fn(x: Any, w: Any, b: Any) -> Any:
        rows = eg.vmap(lambda row: eg.grad(lambda v: _forward(v[None], w, b))(row))(x)
        return [rows, *eg.jvp(lambda v: _forward(x, v, b), (w,), (w,))]

    return Pure(fn, [x, w, b], [])


def _checkpointed(device: str) -> Step:
    x, w, b = data(device, 3, 5), _leaf(device, 5, 4, seed=1), _leaf(device, 4, seed=2)
    return Gradients(lambda *given: eg.checkpoint(_forward, *given).backward(), [x, w, b], [w, b])


def _modes(device: str) -> Step:
    x, w, b = data(device, 3, 5), _leaf(device, 5, 4, seed=1), _leaf(device, 4, seed=2)

    @eg.no_grad()
    def constant(v: Any) -> Any:
        return v * 2.0

    def fn(x: Any, w: Any, b: Any) -> Any:
        with eg.no_grad():
            first = _forward(x, w, b)
            with eg.enable_grad():
                second = x @ w
        with eg.autocast():
            third = _forward(x, w, b)
            with eg.autocast(enabled=False):
                fourth = x @ w
        with eg.inference_mode():
            fifth = constant(x @ w)
        with eg.find_nan(), eg.detect_anomaly():
            sixth = _forward(x, w, b)
        with eg.tools.profile():
            seventh = _forward(x, w, b)
        return [first, second, third, fourth, fifth, sixth, seventh]

    return Pure(fn, [x, w, b], [])


def _autocast_backward(device: str) -> Step:
    x, w, b = data(device, 3, 5), _leaf(device, 5, 4, seed=1), _leaf(device, 4, seed=2)

    def fn(*given: Any) -> Any:
        with eg.autocast():
            _forward(*given).backward()

    return Gradients(fn, [x, w, b], [w, b])


def _large(device: str) -> Step:
    """Ops by native kernels on several threads, and by BLAS."""
    x, w = data(device, 700, 400), data(device, 400, 300, seed=1)
    m = data(device, 6, 40, 40, seed=2)

    def fn(x: Any, w: Any, m: Any) -> Any:
        a = eg.matmul(m, m)
        return [eg.tanh(x).sum(), (x @ w).max(), x.T.contiguous().sum() if hasattr(x, "contiguous")
                else x.T.sum(), eg.linalg.inv(a + eg.eye(40, device=device) * 9.0).sum(),
                eg.sort(x, axis=0)[0].sum(), eg.cumsum(x, axis=1).mean()]  # fmt: skip

    return Pure(fn, [x, w, m], [])


def _first_call(device: str) -> Step:
    """Traced and compiled anew each time."""
    x, w, b = data(device, 3, 5), _leaf(device, 5, 4, seed=1), _leaf(device, 4, seed=2)

    def fn(*given: Any) -> Any:
        return [eg.jit(eg.grad(_forward, argnums=1))(*given)]

    return Pure(fn, [x, w, b], [w, b])


STEPS: dict[str, Callable[[str], Step]] = {
    "backward": _gradients,
    "backward, workers=2": lambda d: _gradients(d, workers=2),
    "backward to a result": _inner,
    "second derivative": _second,
    "grad, vmap, jvp": _transforms,
    "checkpoint": _checkpointed,
    "with blocks": _modes,
    "backward in autocast": _autocast_backward,
    "x[i] = v": Written,
    "SGD, eager": lambda d: Training(d, "sgd", 8, jit=False, dropout=False),
    "AdamW, eager": lambda d: Training(d, "adamw", 8, jit=False, dropout=True),
    "jit": Captured,
    "jit, backward": _compiled_backward,
    "jit, SGD": lambda d: Training(d, "sgd", 8, jit=True, dropout=False),
    "jit, AdamW, dropout": lambda d: Training(d, "adamw", 8, jit=True, dropout=True),
    "jit, SGD, large": lambda d: Training(d, "sgd", 20000, jit=True, dropout=False),
    "jit, first call": _first_call,
    "large ops": _large,
}
