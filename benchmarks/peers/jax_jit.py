"""JAX: every step is one `jax.jit`, its parameters and optimiser state donated.

On the device that JAX chooses, which in .venv-jax is the CPU. Each step is waited for, unless
`finish` is another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

# JAX does not follow OMP_NUM_THREADS: the cores it may run on bound it.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ["OMP_NUM_THREADS"])])

import jax  # type: ignore[import-not-found]  # lives in .venv-jax
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
from jax import lax

from benchmarks.peers import Step
from benchmarks.workloads import Array, Data

VERSIONS = {"jax": jax.__version__}
Tree = dict[str, Any]
finish: Callable[[Any], Any] = jax.block_until_ready
BETA1, BETA2, EPS, DECAY = 0.9, 0.999, 1e-8, 0.01  # torch.optim.AdamW's defaults


def _tree(arrays: dict[str, Array]) -> Tree:
    return {name: jnp.array(a) for name, a in arrays.items()}


class Leaves:
    """A scalar loss and its gradients by the leaves named in `wrt`."""

    def __init__(self, data: Data, wrt: Iterable[str], loss: Callable[[Tree, Tree], Any]) -> None:
        self.leaves = _tree(data.arrays)
        self.wrt = {name: self.leaves.pop(name) for name in wrt}
        self.compiled = jax.jit(jax.value_and_grad(loss))
        self.result: Any = None

    def run(self) -> None:
        self.result = None  # as `.grad = None` does: their memory is free for the new ones
        self.result = finish(self.compiled(self.wrt, self.leaves))

    def value(self) -> float:
        return float(self.result[0])

    def outputs(self) -> dict[str, Array]:
        loss, grads = self.result
        return {"loss": np.array(loss)} | {f"grad.{n}": np.array(g) for n, g in grads.items()}


def _chain(repeats: int, wrt: Tree, rest: Tree) -> Any:
    y, a, b = ((wrt | rest)[name] for name in "xab")
    for _ in range(repeats):
        y = y * a + b
    return y.sum()


def _pointwise(wrt: Tree, _rest: Tree) -> Any:
    x = wrt["x"] * wrt["w"] + wrt["b"] if "w" in wrt else wrt["x"]
    return jax.nn.gelu(x, approximate=False).mean()


def _sgd(lr: float, params: Tree, grads: Tree, state: Tree) -> tuple[Tree, Tree]:
    return jax.tree.map(lambda p, g: p - lr * g, params, grads), state


def _adamw(lr: float, params: Tree, grads: Tree, state: Tree) -> tuple[Tree, Tree]:
    count = state["count"] + 1
    m = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, state["v"], grads)
    rate = lr / (1 - BETA1**count)
    root = jnp.sqrt(1 - BETA2**count)

    def move(p: Any, m: Any, v: Any) -> Any:
        return p * (1 - lr * DECAY) - rate * m / (jnp.sqrt(v) / root + EPS)

    return jax.tree.map(move, params, m, v), {"count": count, "m": m, "v": v}


def _cross_entropy(logits: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1).mean()


class Train:
    """A model of logits trained by cross entropy: `model(params, x)`."""

    def __init__(self, model: Callable[[Tree, Any], Any], data: Data) -> None:
        self.model = model
        self.start, self.settings = data.weights, data.settings
        if self.settings.get("precision") == "tf32":
            jax.config.update("jax_default_matmul_precision", "tensorfloat32")
        self.x = jnp.array(data.arrays["x"])
        self.y = jnp.array(data.arrays["y"]).reshape(-1)
        update = _sgd if self.settings["optimiser"] == "sgd" else _adamw
        self.update = partial(update, self.settings["lr"])
        self.params, self.state = self._initial()
        self.compiled = jax.jit(self._step, donate_argnums=(0, 1))
        self.done = 0
        self.loss: Any = None

    def _initial(self) -> tuple[Tree, Tree]:
        params = _tree(self.start)
        if self.settings["optimiser"] == "sgd":
            return params, {}
        zeros = partial(jax.tree.map, jnp.zeros_like, params)
        return params, {"count": jnp.zeros(()), "m": zeros(), "v": zeros()}

    def _loss(self, params: Tree, x: Any, y: Any) -> Any:
        if self.settings.get("precision") == "bf16":  # the weights themselves stay float32
            params = {name: p.astype(jnp.bfloat16) for name, p in params.items()}
        return _cross_entropy(self.model(params, x).astype(jnp.float32), y)

    def _step(self, params: Tree, state: Tree, x: Any, y: Any) -> tuple[Tree, Tree, Any]:
        loss, grads = jax.value_and_grad(self._loss)(params, x, y)
        return *self.update(params, grads, state), loss

    def run(self) -> None:
        out = self.compiled(self.params, self.state, self.x, self.y)
        self.params, self.state, self.loss = finish(out)
        self.done += 1

    def value(self) -> float:
        return float(self.loss)

    def _last_grads(self) -> Tree:
        """The last step keeps no gradients: its parameters are made again, and taken backward."""
        params, state = self._initial()
        for _ in range(self.done - 1):
            params, state, _ = self.compiled(params, state, self.x, self.y)
        grads: Tree = jax.jit(jax.grad(self._loss))(params, self.x, self.y)
        return grads

    def outputs(self) -> dict[str, Array]:
        grads = {f"grad.{name}": np.array(g) for name, g in self._last_grads().items()}
        changes = {f"change.{n}": np.array(p) - self.start[n] for n, p in self.params.items()}
        return {"loss": np.array(self.loss)} | grads | changes


def _linear(params: Tree, name: str, x: Any) -> Any:
    return x @ params[f"{name}.weight"].T + params.get(f"{name}.bias", 0.0)


def _mlp(layers: int, params: Tree, x: Any) -> Any:
    for i in range(layers):
        x = _linear(params, str(2 * i), x)
        if i < layers - 1:
            x = jax.nn.relu(x)
    return x


def _conv_pool(params: Tree, name: str, x: Any) -> Any:
    kinds = ("NHWC", "OIHW", "NHWC")
    weight = params[f"{name}.weight"]
    x = lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=kinds)
    x = jax.nn.relu(x + params[f"{name}.bias"])
    batch, height, width, channels = x.shape
    # Timed against reduce_window, which took 1.3 times as long for the whole step.
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))


def _cnn(params: Tree, x: Any) -> Any:
    """Channels last inside, which timed faster; weights and flattened features as PyTorch's."""
    x = x.transpose(0, 2, 3, 1)
    x = _conv_pool(params, "conv2", _conv_pool(params, "conv1", x))
    return _linear(params, "head", x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1))


def _layer_norm(params: Tree, name: str, x: Any) -> Any:
    given, x = x.dtype, x.astype(jnp.float32)
    x = x - x.mean(-1, keepdims=True)
    x = (x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)).astype(given)
    return x * params[f"{name}.weight"] + params[f"{name}.bias"]


def _attention(x: Any) -> str:
    """JAX's fastest attention: cuDNN's, which takes half floats on a GPU only."""
    return "cudnn" if jax.default_backend() == "gpu" and x.dtype == jnp.bfloat16 else "xla"


def _block(params: Tree, name: str, heads: int, x: Any) -> Any:
    batch, tokens, width = x.shape
    shape = batch, tokens, heads, width // heads
    parts = jnp.split(_linear(params, f"{name}.qkv", _layer_norm(params, f"{name}.ln1", x)), 3, -1)
    q, k, v = (part.reshape(shape) for part in parts)
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=_attention(x))
    x = x + _linear(params, f"{name}.proj", mixed.reshape(batch, tokens, width))
    wide = _linear(params, f"{name}.up", _layer_norm(params, f"{name}.ln2", x))
    return x + _linear(params, f"{name}.down", jax.nn.gelu(wide, approximate=False))


def _gpt(settings: dict[str, Any], params: Tree, x: Any) -> Any:
    h = params["wte.weight"][x] + params["wpe.weight"]
    for i in range(settings["layers"]):
        h = _block(params, f"blocks.{i}", settings["heads"], h)
    h = _layer_norm(params, "ln", h)
    tied = settings.get("tied", False)
    logits = h @ params["wte.weight"].T if tied else _linear(params, "head", h)
    return logits.reshape(-1, settings["vocab"])


def _lstm(layers: int, params: Tree, x: Any) -> Any:
    for layer in range(layers):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w_ih, w_hh, b_ih, b_hh = (params[f"lstm.{name}_l{layer}"] for name in names)

        def step(state: Any, gx: Any, w: Any = w_hh) -> Any:
            h, c = state
            i, f, g, o = jnp.split(gx + h @ w.T, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((x.shape[1], w_hh.shape[1]))
        _, x = jax.lax.scan(step, (start, start), x @ w_ih.T + b_ih + b_hh)
    logits = _linear(params, "head", x)
    return logits.reshape(-1, logits.shape[-1])


class HVP:
    """Reverse over reverse, as the others do it; forward over reverse was within the noise."""

    def __init__(self, data: Data) -> None:
        arrays = _tree(data.arrays)
        self.x, self.y = arrays["x"], arrays["y"]
        self.params = _tree(data.weights)
        self.v = {name: arrays[f"v.{name}"] for name in self.params}
        self.layers = len(data.settings["sizes"]) - 1
        self.compiled = jax.jit(self._product)
        self.product: Tree = {}

    def _loss(self, params: Tree, x: Any, y: Any) -> Any:
        for i in range(self.layers):
            x = _linear(params, str(i), x)
            if i < self.layers - 1:
                x = jnp.tanh(x)
        return ((x - y) ** 2).mean()

    def _product(self, params: Tree, v: Tree, x: Any, y: Any) -> Tree:
        _, pull = jax.vjp(lambda p: jax.grad(self._loss)(p, x, y), params)
        product: Tree = pull(v)[0]
        return product

    def run(self) -> None:
        out = self.compiled(self.params, self.v, self.x, self.y)
        self.product = jax.block_until_ready(out)

    def outputs(self) -> dict[str, Array]:
        return {f"hvp.{name}": np.array(a) for name, a in self.product.items()}


def _make_chain(data: Data) -> Step:
    return Leaves(data, data.settings["wrt"], partial(_chain, data.settings["repeats"]))


STEPS: dict[str, Callable[[Data], Step]] = {
    "chain": _make_chain,
    "mlp": lambda data: Train(partial(_mlp, len(data.settings["sizes"]) - 1), data),
    "pointwise": lambda data: Leaves(data, data.arrays, _pointwise),
    "cnn": lambda data: Train(_cnn, data),
    "gpt": lambda data: Train(partial(_gpt, data.settings), data),
    "lstm": lambda data: Train(partial(_lstm, data.settings["layers"]), data),
    "hvp": HVP,
}


def trivial(shape: tuple[int, ...], add: bool) -> Callable[[], object]:
    """A call of a compiled function that does nothing, or adds 1."""
    x = jnp.ones(shape)
    fn = jax.jit((lambda x: x + 1) if add else (lambda x: x))
    return lambda: jax.block_until_ready(fn(x))
