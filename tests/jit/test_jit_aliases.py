"""eg.jit where one tensor goes by several names, or changes what it is between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from tests.support.checks import close, values

Case = Callable[[Callable[..., Any]], Any]


def ones(*shape: int) -> Any:
    return eg.tensor(np.ones(shape, np.float32))


def returns_what_it_replaces(jit: Any) -> Any:
    p = ones(3)

    def f() -> Any:
        old = p.detach()
        with eg.no_grad():
            p.__iadd__(1.0)
        return old

    g = jit(f)
    return [g() for _ in range(3)], p


def moves_round(jit: Any) -> Any:
    p, q = ones(2), ones(2) * 10.0

    def f() -> None:
        old = p.detach()
        with eg.no_grad():
            p.rebind(q.detach()._data, None)
            q.rebind((old + 1.0)._data, None)

    g = jit(f)
    for _ in range(4):
        g()
    return [p, q]


def given_twice(jit: Any) -> Any:
    def f(a: Any, b: Any) -> Any:
        a += 1.0
        b *= 2.0
        return a + b

    g = jit(f)
    x, y, z = ones(2), ones(2), ones(2)
    return [g(x, y), g(z, z), z, x, y, g(y, x), x, y]


def gradient_of_one_given_twice(jit: Any) -> Any:
    g = jit(lambda a, b: (a * b).sum().backward())
    w, v = ones(2).requires_grad_(), ones(2).requires_grad_()
    g(w, w)
    g(w, v)
    return [w.grad, v.grad]


def an_argument_that_is_captured(jit: Any) -> Any:
    p = ones(2)

    def f(a: Any) -> Any:
        a += 1.0
        return p * 1.0

    g = jit(f)
    q = ones(2)
    first = g(q)
    return [first, g(p), p, g(q), q]


def captured_first(jit: Any) -> Any:
    p = ones(2)

    def f(a: Any) -> Any:
        a += 1.0
        return p * 1.0

    g = jit(f)
    q = ones(2)
    return [g(p), p, g(q), q, p]


def an_argument_gathers_gradients(jit: Any) -> Any:
    g = jit(lambda w: (w * w).sum().backward())
    w = ones(3).requires_grad_()
    for _ in range(3):
        g(w)
    first = w.grad
    w.grad = None
    g(w)
    return [first, w.grad]


def starts_to_require_grad(jit: Any) -> Any:
    a = ones(3)
    b = a.detach()
    g = jit(lambda x: (x * a * b).sum())
    x = ones(3)
    g(x)
    b.requires_grad_()
    g(x).backward()
    return [b.grad]


def signed_zeros(jit: Any) -> Any:
    g = jit(lambda x, k: 1.0 / (x * k))
    x = ones(2)
    return [g(x, 0.0), g(x, -0.0)]


def a_measure_of_a_used_graph(jit: Any) -> Any:
    w = ones(3).requires_grad_()

    def f(x: Any) -> Any:
        w.grad = None
        loss = (x * w * w).mean()
        loss.backward()
        return loss.detach(), eg.exp(loss)

    g = jit(f)
    return [*g(ones(3)), *g(ones(3)), w.grad]


def a_function_that_knows_itself(jit: Any) -> Any:
    def f(x: Any) -> Any:
        def inner(n: int) -> Any:
            return y if n == 0 else inner(n - 1) * 2.0

        y = x + 1.0
        return inner(3)

    g = jit(f)
    return [g(ones(2)), g(ones(2)), g(ones(2))]


def a_rolling_buffer(jit: Any) -> Any:
    r = eg.tensor(np.arange(100, dtype=np.float32))

    def f(x: Any) -> None:
        with eg.no_grad():
            r.rebind(eg.concat([eg.flip(r[1:]), x])._data, None)

    g = jit(f)
    for k in range(4):
        g(ones(1) * float(k))
    return [r]


def seeds(jit: Any) -> Any:
    g = jit(lambda: eg.rand((3,)))
    eg.manual_seed(3)
    first = g()
    eg.manual_seed(7)
    return [first, g(), g()]


def settings_of_an_optimiser(jit: Any) -> Any:
    p = ones(3).requires_grad_()
    opt = eg.optim.SGD([p], lr=0.5, momentum=0.5)

    def f() -> None:
        opt.zero_grad()
        (p * p).sum().backward()
        opt.step()

    g = jit(f)
    for _ in range(3):
        g()
    group = opt.param_groups[0]
    group["weight_decay"] = 0.5
    g()
    group["momentum"] = 0.1
    g()
    group |= {"lr": 0.1}
    g()
    group["lr"] = eg.tensor(0.2)
    g()
    g()
    return [p, p.grad]


def state_is_loaded(jit: Any) -> Any:
    p = ones(3).requires_grad_()
    opt = eg.optim.Adam([p], lr=0.1)

    def f() -> None:
        opt.zero_grad()
        (p * p).sum().backward()
        opt.step()

    g = jit(f)
    g()
    saved = opt.state_dict()
    for _ in range(3):
        g()
    opt.load_state_dict(saved)
    g()
    return [p, opt.state[p]["exp_avg"]]


def modules_change(jit: Any) -> Any:
    eg.manual_seed(1)
    m = eg.nn.Sequential(eg.nn.Linear(3, 3))
    g = jit(lambda x: m(x))
    x = ones(2, 3)
    found = [g(x)]
    m[0].weight = eg.nn.Parameter(ones(3, 3))
    found.append(g(x))
    handle = m[0].register_forward_hook(lambda module, args, out: out * 2.0)
    found.append(g(x))
    handle.remove()
    found.append(g(x))
    w = m[0].weight
    other = w.register_hook(lambda grad: grad * 3.0)
    g(x).sum().backward()
    found.append(w.grad)
    other.remove()
    w.grad = None
    g(x).sum().backward()
    return [*found, w.grad]


def second_derivative_of_one_given_twice(jit: Any) -> Any:
    g = jit(lambda a, b: (a * a * b).sum())
    x = eg.tensor([1.0, 2.0])
    return [eg.grad(lambda x: eg.grad(lambda y: g(y, y))(x).sum())(x)]


def a_held_gradient_is_changed(jit: Any) -> Any:
    w = ones(2).requires_grad_()
    (w * 3.0).sum().backward()
    held = w.grad

    def f() -> None:
        with eg.no_grad():
            w.grad *= 2.0

    g = jit(f)
    g()
    g()
    return [held, w.grad]


def captured_inside_vmap(jit: Any) -> Any:
    xs = eg.tensor(np.arange(6, dtype=np.float32).reshape(3, 2))
    return [
        eg.vmap(lambda a: jit(lambda x: (x * a).sum())(ones(2)))(xs),
        *eg.jvp(lambda a: jit(lambda x: (x * a).sum())(ones(2)), (xs[0],), (xs[1],)),
    ]


def a_sum_that_wraps(jit: Any) -> Any:
    return [jit(lambda: eg.full((4,), 2**62, dtype="int64").sum())()]


def a_follower_that_waits_for_nobody(jit: Any) -> Any:
    rng = np.random.default_rng(0)
    x, w, w2, w3 = (
        eg.tensor(rng.standard_normal(s).astype(np.float32) * 0.1)
        for s in ((1024, 64), (64, 64), (64, 64), (64, 64))
    )

    def f(x: Any) -> Any:
        t, p = x @ w, x @ w3
        q = t.matrix_transpose() @ t
        y = p + t
        return q * 2.0, y @ w2, p @ w2

    return jit(f)(x)


def one_result_after_the_other(jit: Any) -> Any:
    x = ones(3).requires_grad_()
    a, b = jit(lambda x: ((x * 2.0).sum(), (x * x).sum()))(x)
    a.backward()
    b.backward()
    return [x.grad]


def in_anomaly_mode(jit: Any) -> Any:
    x = ones(3).requires_grad_()
    with eg.detect_anomaly():
        jit(lambda x: (x * x).sum())(x).backward()
        jit(lambda: (x * 3.0).sum().backward())()
    return [x.grad]


class Equal:
    """Equal to every other one."""

    def __init__(self, k: float) -> None:
        self.k = eg.tensor(k)

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


def equal_but_different(jit: Any) -> Any:
    g = jit(lambda x, e: x * e.k)
    return [g(ones(2), Equal(2.0)), g(ones(2), Equal(3.0))]


def given_a_value_before_it_is_read(jit: Any) -> Any:
    m = eg.nn.Linear(2, 2)

    def f(x: Any) -> Any:
        with eg.no_grad():
            eg.nn.init.zeros_(m.weight)
            m.weight.__iadd__(x)
        return m(x)

    g = jit(f)
    eg.nn.init.zeros_(m.bias)
    return [g(ones(2, 2)), g(ones(2, 2) * 2.0), m.weight]


def many_slices(jit: Any) -> Any:
    x = eg.tensor(np.arange(60, dtype=np.float32).reshape(3, 20))

    def f(x: Any) -> Any:
        h, seen = eg.zeros((3,)), []
        for i in range(20):
            h = eg.tanh(h * 0.5 + x[:, i])
            seen.append(h)
        return eg.stack(seen, axis=1)

    return [jit(f)(x), eg.grad(lambda x: (jit(f)(x) ** 2).sum())(x)]


def names_that_change(jit: Any) -> Any:
    w, k = ones(2), 2.0
    g = jit(lambda x: x * w * k)
    found = [g(ones(2))]
    w = ones(2) * 5.0
    found.append(g(ones(2)))
    k = 3.0
    found.append(g(ones(2)))
    w.requires_grad_()
    g(ones(2)).sum().backward()
    return [*found, w.grad]


def hooks_of_an_argument(jit: Any) -> Any:
    def f(x: Any) -> None:
        x.grad = None
        (x * 2.0).sum().backward()

    g = jit(f)
    x = ones(2).requires_grad_()
    g(x)
    x.register_hook(lambda g: g * 10.0)
    g(x)
    return [x.grad]


def one_gradient_for_two(jit: Any) -> Any:
    w, v = ones(2).requires_grad_(), ones(2).requires_grad_()
    w.grad = v.grad = ones(2)
    g = jit(lambda: w.grad + v.grad * 2.0)
    first = g()
    v.grad = ones(2) * 5.0
    return [first, g()]


def state_is_replaced(jit: Any) -> Any:
    p = ones(3).requires_grad_()
    opt = eg.optim.Adam([p], lr=0.1)

    def f() -> None:
        opt.zero_grad()
        (p * p).sum().backward()
        opt.step()

    g = jit(f)
    for _ in range(3):
        g()
    opt.state[p]["exp_avg"] = eg.zeros((3,))
    g()
    opt.state.clear()
    g()
    return [p, opt.state[p]["exp_avg"]]


CASES: list[Case] = [
    one_gradient_for_two,
    state_is_replaced,
    names_that_change,
    hooks_of_an_argument,
    a_follower_that_waits_for_nobody,
    one_result_after_the_other,
    in_anomaly_mode,
    equal_but_different,
    given_a_value_before_it_is_read,
    many_slices,
    a_rolling_buffer,
    seeds,
    settings_of_an_optimiser,
    state_is_loaded,
    modules_change,
    second_derivative_of_one_given_twice,
    a_held_gradient_is_changed,
    captured_inside_vmap,
    a_sum_that_wraps,
    returns_what_it_replaces,
    moves_round,
    given_twice,
    gradient_of_one_given_twice,
    an_argument_that_is_captured,
    captured_first,
    an_argument_gathers_gradients,
    starts_to_require_grad,
    signed_zeros,
    a_measure_of_a_used_graph,
    a_function_that_knows_itself,
]


def flat(found: Any) -> list[Any]:
    if isinstance(found, list | tuple):
        return [x for part in found for x in flat(part)]
    return [values(found)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_as_eager(case: Case) -> None:
    got, want = flat(case(eg.jit)), flat(case(lambda f: f))
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-6)
