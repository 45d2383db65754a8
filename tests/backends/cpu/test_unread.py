"""Arguments that no kernel reads are not computed, and change nothing."""

import numpy as np

import everygrad as eg
from everygrad import dtypes
from everygrad._jit.buffers import Buffer, compile_buffers
from everygrad.backends.cpu.gemm.recurrent import UNREAD
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.nn.recurrent import rnn_sequence_and_reserve
from everygrad.ops.record.spec import REGISTRY


def test_places_are_those_of_inputs_that_definitions_read() -> None:
    for name, places in UNREAD.items():
        assert "reserve" not in {REGISTRY[name].inputs[i] for i in places}
        assert "g" not in {REGISTRY[name].inputs[i] for i in places}


def test_gradients_by_the_reserve_need_no_product_of_the_inputs() -> None:
    rng = np.random.default_rng(0)
    shapes = {"x": (3, 2, 5), "w_in": (16, 5), "start": (2, 8), "w": (16, 4), "b": (16,)}
    arrays = {k: eg.tensor(rng.normal(size=s).astype("float32")) for k, s in shapes.items()}

    def run(*given: eg.Tensor, reserve: eg.Tensor | None = None) -> tuple[eg.Tensor, eg.Tensor]:
        x, w_in, start, w, b = given
        return rnn_sequence_and_reserve(matmul(x, w_in.mT), start, w, b, "lstm", reserve)

    def gradients(given: list[eg.Tensor]) -> list[eg.Tensor]:
        *rest, reserve = given
        return list(eg.vjp(lambda *xs: run(*xs, reserve=reserve)[0], *rest)[1](eg.ones((3, 2, 8))))

    given = list(arrays.values())
    _, reserve = run(*given)
    want = eg.vjp(lambda *xs: run(*xs)[0], *given)[1](eg.ones((3, 2, 8)))
    buffers = [Buffer(t.shape, dtypes.float32) for t in (*given, reserve)]
    made = compile_buffers(gradients, buffers)
    names = [s.name for s in made.replay.program.steps]
    assert not any("rnn_reserve" in name for name in names)
    # by the states' weights, the inputs' weights and the inputs; none forward
    assert sum("matmul" in name or "linear" in name for name in names) == 3
    got = made.on_payloads([t._data for t in (*given, reserve)])
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)
