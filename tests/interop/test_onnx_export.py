"""save_onnx: every op's file, run by onnxruntime, gives eager's numbers or is refused by name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import everygrad as eg
from devtools.fuzz.__main__ import program_of
from devtools.fuzz.check import case_of
from everygrad import dtypes, nn
from everygrad.errors import (
    ArgumentError,
    EverygradError,
    MissingFileError,
    MissingOpsError,
    TraceError,
)
from everygrad.ops.record.spec import REGISTRY
from examples import digits, gpt, lstm, maml, resnet, sentence_encoder, vae
from tests.registry.test_jit_ops import as_function
from tests.support.checks import WITH_SAMPLES, arrays_of, in_dtype, values

TOLERANCE = {"float16": 6e-3, "float32": 2e-5, "float64": 2e-6}
# what has no ONNX form, and what is said of it
COMPLEX = r"complex(64|128)"
SIZES = "the size of the result depends on values|a bool index"
RANDOM = "random numbers; switch dropout off"
REFUSED = {
    **{n: COMPLEX for n in WITH_SAMPLES if re.fullmatch("fft_.*fft[2n]?", n)},
    **dict.fromkeys(
        (
            "dft",
            "dftn",
            "real_dft",
            "half_dft",
            "real_dft_weighted",
            "half_dft_weighted",
            "whole_dft",
            "stft",
            "istft",
            "eig",
            "eigvals",
        ),
        COMPLEX,
    ),
    **{n: SIZES for n in WITH_SAMPLES if REGISTRY[n].notes.get("by_values")},
    **dict.fromkeys(("philox", "mulhi"), RANDOM),
    "nextafter": "the bits of a float before opset 26",
}
_QUIET = ort.SessionOptions()
_QUIET.log_severity_level = 4
_QUIET.intra_op_num_threads = 1


def run(path: Path, inputs: Any) -> list[Any]:
    """The outputs that onnxruntime computes; an input that no node reads is not there."""
    session = ort.InferenceSession(str(path), _QUIET, providers=["CPUExecutionProvider"])
    names = [i.name for i in onnx.load(str(path)).graph.input]
    given = dict(zip(names, [x.detach().numpy() for x in inputs], strict=True))
    return list(session.run(None, given))


def results(out: Any) -> list[Any]:
    return [out] if isinstance(out, eg.Tensor) else list(out)


def agree(got: list[Any], out: Any, tolerance: float | None = None) -> None:
    want = [values(w.detach()) for w in results(out)]
    assert len(got) == len(want)
    assert got
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        if w.dtype.kind not in "f":
            np.testing.assert_array_equal(g, w)
            continue
        finite = np.abs(w[np.isfinite(w)])
        bound = TOLERANCE[str(w.dtype)] if tolerance is None else tolerance
        atol = bound * max(1.0, float(finite.max(initial=0)))
        np.testing.assert_allclose(g, w, rtol=bound, atol=atol)


def is_complex(sample: Any) -> bool:
    return any(a.dtype.kind == "c" for a in arrays_of(sample))


def exported(name: str, dtype: str, path: Path, least: int = 100) -> tuple[int, list[str]]:
    """How many samples of an op agree, and what is said of the others."""
    op, done, said = REGISTRY[name], 0, []
    for sample in list(op.samples())[:least]:
        rounded = sample if is_complex(sample) else in_dtype(sample, dtypes.as_dtype(dtype))
        function = as_function(op, rounded)
        given = [eg.tensor(a) for a in arrays_of(rounded)]
        names = [f"x{i}" for i in range(len(given))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = function(*given)
        if any(w.dtype is dtypes.bfloat16 for w in want):  # onnxruntime gives no such array
            continue
        try:
            eg.io.save_onnx(function, tuple(given), path, input_names=names)
        except (MissingOpsError, TraceError, ArgumentError) as error:
            said.append(str(error))
            continue
        agree(run(path, given), want)
        done += 1
    return done, said


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_every_op_in_float32(name: str, tmp_path: Path) -> None:
    done, said = exported(name, "float32", tmp_path / "op.onnx")
    wanted = REFUSED.get(name)
    if wanted is None:
        assert done  # a sample may want complex numbers, or a mask as an index; never all of them
        assert all(re.search(f"{COMPLEX}|{SIZES}", text) for text in said)
    else:
        assert said
        assert all(re.search(wanted, text) for text in said)


# one of each family, and what has rules of its own by dtype
HALVES = ("add", "gelu", "softmax", "layer_norm", "conv2d", "max_pool2d", "matmul", "linear_bias",
          "rnn_sequence", "attention", "take", "cumulative_sum", "sort", "sum", "mean", "astype",
          "log1p", "atan2", "where", "batch_norm", "logsumexp", "interpolate")  # fmt: skip


@pytest.mark.parametrize("name", [n for n in HALVES if n in WITH_SAMPLES])
def test_half_floats(name: str, tmp_path: Path) -> None:
    done, _ = exported(name, "float16", tmp_path / "op.onnx", least=1)
    assert done == 1


@pytest.mark.parametrize("name", [n for n in HALVES if n in WITH_SAMPLES])
def test_bfloat16_by_our_own_importer(name: str, tmp_path: Path) -> None:
    """onnxruntime's CPU has few ops of it; ONNX has more, and the checker agrees."""
    op, path = REGISTRY[name], tmp_path / "op.onnx"
    sample = in_dtype(next(iter(op.samples())), dtypes.bfloat16)
    function, given = as_function(op, sample), [eg.tensor(a) for a in arrays_of(sample)]
    eg.io.save_onnx(function, tuple(given), path)
    out, want = results(eg.io.load_onnx(path)(*given)), results(function(*given))
    assert [o.dtype for o in out] == [w.dtype for w in want]
    wide = [values(o.astype("float32")) for o in out], [w.astype("float32") for w in want]
    agree(*wide, tolerance=3e-2)


def test_random_programs(tmp_path: Path) -> None:
    """Programs of the fuzzer, whose ops read each other's results."""
    agreed, lacking = 0, set()
    for seed in range(40):
        case = case_of(program_of(seed, narrow=True))
        out = case.f(*case.args)
        if any(t.dtype is dtypes.bfloat16 for t in [*case.args, *results(out)]):
            continue
        names = [f"x{i}" for i in range(len(case.args))]
        try:
            path = eg.io.save_onnx(case.f, tuple(case.args), tmp_path / "f.onnx", input_names=names)
        except MissingOpsError as error:
            lacking |= {what for what in error.lacking if "complex" not in what}
            continue
        agree(run(path, case.args), out, 3e-4)
        agreed += 1
    assert agreed > 30
    assert lacking <= {"nextafter (the bits of a float before opset 26)"}


DOUBLES = ("add", "gelu_tanh", "softmax", "layer_norm", "matmul", "linear_bias", "instance_norm",
           "rnn_sequence", "take", "cumulative_sum", "sort", "mean", "log1p", "expm1")  # fmt: skip


@pytest.mark.parametrize("name", DOUBLES)
def test_doubles_keep_their_digits(name: str, tmp_path: Path) -> None:
    """No constant and no eps of a float64 program is rounded to float32."""
    op, path = REGISTRY[name], tmp_path / "op.onnx"
    sample = next(iter(op.samples()))
    function, given = as_function(op, sample), [eg.tensor(a) for a in arrays_of(sample)]
    eg.io.save_onnx(function, tuple(given), path)
    agree(run(path, given), function(*given), 1e-13)


# --- models --------------------------------------------------------------------------------------

_BERT = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2,
         "intermediate_size": 32, "max_position_embeddings": 32, "type_vocab_size": 2}  # fmt: skip


def tokens(*shape: int, below: int = 11) -> eg.Tensor:
    return eg.tensor(np.random.default_rng(0).integers(0, below, shape))


def images(*shape: int) -> eg.Tensor:
    return eg.tensor(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


class _Decoder(nn.Module):
    """What of a VAE draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.vae = vae.VAE(4, 16)

    def forward(self, z: eg.Tensor) -> eg.Tensor:
        logits: eg.Tensor = self.vae.decode(z).logits
        return logits


def _spread(x: eg.Tensor) -> list[eg.Tensor]:
    """Sizes in every place where they can stand."""
    n = x.shape[0]
    return [
        x.mean(axis=0), x.var(axis=0), eg.concat([x, 2 * x], axis=0), x.flip(0), x.sum() / n,
        eg.pad(x, ((1, 2), (0, 0))), eg.arange(n).astype("float32") * 2 + 3, x.reshape(-1), x[1:],
        x[:-1], eg.tril(eg.ones((n, n))), x * n**-0.5, eg.zeros((n, 2)), x.reshape(1, n, 3, 1),
        eg.stack([x, x], axis=1).reshape(2 * n, 3), x.sort(axis=0)[0], x.cumulative_sum(axis=0),
        x.argmax(axis=0), eg.softmax(x, 0), eg.full((n,), n), x.expand_dims(1) - x,
    ]  # fmt: skip


def _many_maps(x: eg.Tensor) -> eg.Tensor:
    return eg.nn.functional.max_pool2d(eg.nn.functional.relu(x), 3, 2, 1)


BATCH = {0: "batch"}
BATCH_TIME = {0: "batch", 1: "time"}
# name: (function, inputs it is exported with, dynamic sizes, inputs of other sizes)
MODELS: dict[str, Callable[[], tuple[Any, Any, Any, Any]]] = {
    "digits": lambda: (digits.network().eval(), (images(4, 1, 8, 8),), {"x": BATCH},
                       (images(7, 1, 8, 8),)),
    "gpt": lambda: (gpt.GPT(11, 2, 2, 16, 32), (tokens(2, 8),), {"x": BATCH_TIME},
                    (tokens(3, 32),)),
    "resnet": lambda: (resnet.ResNet18(10, 8).eval(), (images(2, 3, 32, 32),),
                       {"x": {0: "batch", 2: "height", 3: "width"}}, (images(3, 3, 41, 33),)),
    "lstm": lambda: (lstm.Classifier(8, 2).eval(), (tokens(3, 9, below=3), eg.tensor([9, 4, 6])),
                     {"tokens": BATCH_TIME, "lengths": BATCH},
                     (tokens(2, 12, below=3), eg.tensor([12, 4]))),
    "decoder": lambda: (_Decoder().eval(), (images(3, 4),), {"z": BATCH}, (images(5, 4),)),
    "encoder": lambda: (sentence_encoder.Encoder(eg.models.Bert(_BERT)).eval(),
                        (tokens(2, 6, below=30), eg.ones((2, 6), dtype="bool")),
                        {"tokens": BATCH_TIME, "real": BATCH_TIME},
                        (tokens(3, 9, below=30), eg.ones((3, 9), dtype="bool"))),
    "transformer": lambda: (nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval(),
                            (images(2, 5, 16), images(2, 4, 16)),
                            {"src": {0: "batch", 1: "s"}, "tgt": {0: "batch", 1: "t"}},
                            (images(3, 7, 16), images(3, 6, 16))),
    "gru": lambda: (nn.GRU(3, 4, bidirectional=True, batch_first=True), (images(2, 5, 3),),
                    {"x": BATCH_TIME}, (images(3, 8, 3),)),
    "sizes": lambda: (_spread, (images(4, 3),), {"x": {0: "n"}}, (images(7, 3),)),
    "pools": lambda: (_many_maps, (images(2, 3, 9, 8),), {"x": {0: "n", 2: "h"}},
                      (images(1, 3, 12, 8),)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_at_every_size_and_back_again(name: str, tmp_path: Path) -> None:
    fn, given, dynamic, other = MODELS[name]()
    path = eg.io.save_onnx(
        fn, given, tmp_path / "model.onnx", dynamic=dynamic, input_names=list(dynamic)
    )
    again = eg.io.load_onnx(path)
    for inputs in (given, other):
        with eg.no_grad():
            want, back = _flat(fn(*inputs)), results(again(*inputs))
        agree(run(path, inputs), want)
        agree([values(b.detach()) for b in back], want)
    if isinstance(fn, nn.Module):
        weights = {i.name for i in onnx.load(str(path)).graph.initializer}
        unread = ("num_batches_tracked", "vae.encoder", "vae.mean", "vae.log_scale", "pooler")
        wanted = {n for n in fn.state_dict() if not any(u in n for u in unread)}
        assert wanted
        assert wanted <= weights


def _flat(out: Any) -> list[Any]:
    return [
        t for part in results(out) for t in (_flat(part) if isinstance(part, tuple) else [part])
    ]


def test_a_training_step_is_a_function_too(tmp_path: Path) -> None:
    """Gradients are ops like any others."""
    weights = maml.starting_weights(0, "cpu")
    x, y = images(5, 1), images(5, 1)

    def step(x: eg.Tensor, y: eg.Tensor) -> list[eg.Tensor]:
        return list(maml.adapted(weights, x, y))

    path = eg.io.save_onnx(step, (x, y), tmp_path / "step.onnx")
    agree(run(path, (x, y)), step(x, y))


def test_known_ops_are_one_node_each(tmp_path: Path) -> None:
    """A network of ResNet's kind is written as people draw it."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 2), nn.GELU())  # fmt: skip
    path = eg.io.save_onnx(net.eval(), images(2, 3, 8, 8), tmp_path / "net.onnx")
    graph = onnx.load(str(path)).graph
    kinds = [node.op_type for node in graph.node if node.op_type != "Constant"]
    assert kinds == ["Conv", "BatchNormalization", "Relu", "MaxPool", "Reshape",
                     "LayerNormalization", "Gemm", "Gelu"]  # fmt: skip
    # what reads the file finds the weights, and takes no number of the program for one
    assert {i.name for i in graph.initializer} | {"1.num_batches_tracked"} == {*net.state_dict()}
    assert {n for n, _ in eg.io.load_onnx(path).named_parameters()} == {
        n for n, _ in net.named_parameters()
    }


def test_a_pattern_that_broadcasts_is_not_one_node(tmp_path: Path) -> None:
    """One bias for all channels is no bias of a Conv, one weight for a row none of its norm."""
    w, one = images(4, 3, 3, 3), images(1)

    def f(x: eg.Tensor) -> list[eg.Tensor]:
        maps = eg.nn.functional.conv2d(x, w) + one.reshape(1, 1, 1)
        return [maps, eg.nn.functional.layer_norm(x, (8,)) * one + one]

    x = images(2, 3, 8, 8)
    path = eg.io.save_onnx(f, x, tmp_path / "f.onnx")
    agree(run(path, (x,)), f(x))


# --- what the file says --------------------------------------------------------------------------


def test_names_shapes_and_outputs(tmp_path: Path) -> None:
    """Outputs may be inputs, constants and each other; sizes that stay open keep their names."""
    net = nn.Linear(3, 2)

    def f(a: eg.Tensor, unused: eg.Tensor) -> Any:
        y = net(a)
        return a, [y, y], eg.ones((2,)), eg.concat([y, y], axis=0)

    names = ["same", "first", "second", "one", "both"]
    path = eg.io.save_onnx(f, (images(4, 3), images(1)), tmp_path / "f.onnx",
                           dynamic={"a": {0: "rows"}}, output_names=names)  # fmt: skip
    graph = onnx.load(str(path)).graph
    assert [i.name for i in graph.input] == ["a", "unused"]
    sizes = [[d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim]
             for o in graph.output]  # fmt: skip
    assert [o.name for o in graph.output] == names
    assert sizes == [["rows", 3], ["rows", 2], ["rows", 2], [2], ["rows*2", 2]]
    assert {"weight", "bias"} <= {i.name for i in graph.initializer}
    given = (images(5, 3), images(1))
    same, (first, second), *rest = f(*given)
    agree(run(path, given), [same, first, second, *rest])


def test_tied_weights_are_one_initializer(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: eg.Tensor) -> eg.Tensor:
            return self.head(self.embed(x))

    path = eg.io.save_onnx(Tied(), tokens(2, 3, below=5), tmp_path / "tied.onnx")
    held = [i.name for i in onnx.load(str(path)).graph.initializer if "weight" in i.name]
    assert held == ["embed.weight"]


def test_large_weights_lie_beside(tmp_path: Path) -> None:
    net, x = nn.Linear(64, 32), images(2, 64)
    path = eg.io.save_onnx(net, x, tmp_path / "net.onnx", external_above=1000)
    assert (tmp_path / "net.onnx.data").stat().st_size >= 64 * 32 * 4
    assert path.stat().st_size < 2000
    agree(run(path, (x,)), net(x))
    assert eg.io.load_onnx(path)(x).tolist() == net(x).tolist()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "net.onnx.data"]


@pytest.mark.parametrize("opset", [18, 19, 20, 21, 22, 23, onnx.defs.onnx_opset_version()])
def test_opsets(opset: int, tmp_path: Path) -> None:
    """A file says its opset, and holds to it: the checker looks, and our own importer runs it."""
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.GELU(), nn.Flatten(), nn.LayerNorm(24),
                        nn.Linear(24, 3), nn.Softmax(-1))  # fmt: skip
    x = images(2, 2, 8)
    path = eg.io.save_onnx(net, x, tmp_path / "net.onnx", opset=opset)
    model = onnx.load(str(path))
    assert [o.version for o in model.opset_import] == [opset]
    onnx.checker.check_model(model, full_check=True)
    agree([values(eg.io.load_onnx(path)(x).detach())], net(x))


def test_a_function_that_keeps_state_leaves_it_usable(tmp_path: Path) -> None:
    """What a trace made is computed for whoever holds it, though the export is refused."""
    kept: list[eg.Tensor] = []

    def f(x: eg.Tensor) -> eg.Tensor:
        kept.append(eg.softmax(x, -1))
        return x + 1

    x = images(2, 3)
    with pytest.raises(MissingOpsError, match="tensors that it makes and keeps"):
        eg.io.save_onnx(f, x, tmp_path / "f.onnx")
    assert np.allclose(kept[-1].numpy(), eg.softmax(x, -1).numpy())
    assert not (tmp_path / "f.onnx").exists()


def test_on_webgpu_tensors(device: str, tmp_path: Path) -> None:
    """Where the weights lie makes no difference to the file."""
    net = nn.Linear(3, 2).to(device)
    x = images(4, 3)
    path = eg.io.save_onnx(net, x.to(device), tmp_path / "net.onnx")
    agree(run(path, (x,)), net(x.to(device)).detach().to("cpu"))


# --- bad input -----------------------------------------------------------------------------------

_TRAINING = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
_TABLE = {  # what is given in place of a good call: its keywords
    "a folder": ({"path": "."}, ArgumentError, "is a folder"),
    "no folder": ({"path": "nowhere/f.onnx"}, MissingFileError, "no folder"),
    "a number for a path": ({"path": 3}, ArgumentError, "a path is text"),
    "no function": ({"fn": 3}, ArgumentError, "takes a function or a module, got int"),
    "a dict": ({"inputs": {"x": 1}}, ArgumentError, "give the arguments as a tuple"),
    "a number": ({"inputs": (1.0,)}, ArgumentError, "input 0 is 1.0"),
    "complex": ({"inputs": (eg.ones((2,), dtype="complex64"),)}, ArgumentError, "input 0 is compl"),
    "an old opset": ({"opset": 17}, ArgumentError, "opset must be from 18"),
    "a new opset": ({"opset": 1000}, ArgumentError, "opset must be from 18"),
    "a bool opset": ({"opset": True}, ArgumentError, "opset must be from 18"),
    "a negative size": ({"external_above": -1}, ArgumentError, "external_above must be"),
    "names as text": ({"input_names": "x"}, ArgumentError, "give a list of names"),
    "too many names": ({"input_names": ["a", "b"]}, ArgumentError, "2 names for 1"),
    "empty names": ({"output_names": [""]}, ArgumentError, "different, non-empty"),
    "names twice": ({"input_names": ["y"], "output_names": ["y"]}, ArgumentError, "inputs and out"),
    "no such input": ({"dynamic": {"z": {0: "n"}}}, ArgumentError, r"the inputs are \['x'\]"),
    "no such axis": ({"dynamic": {"x": {2: "n"}}}, ArgumentError, "names axis 2"),
    "axes as a list": ({"dynamic": {"x": [0]}}, ArgumentError, "give {axis: name"),
    "a name with signs": ({"dynamic": {"x": {0: "a b"}}}, ArgumentError, "name is a word"),
    "dynamic as a list": ({"dynamic": ["x"]}, ArgumentError, 'give {"x"'),
    "sizes that differ": ({"dynamic": {"x": {0: "n", 1: "n"}}}, ArgumentError, "4 and 3"),
    "nothing returned": ({"fn": lambda x: ()}, ArgumentError, "returns nothing"),
    "a value read": ({"fn": lambda x: x * float(x.sum())}, TraceError, "value"),
    "training": ({"fn": _TRAINING}, MissingOpsError, r"new values of tensors.*random numbers"),
    "an eigenvalue": ({"fn": lambda x: eg.linalg.eigvals(x[:3])}, MissingOpsError,
                      r"ONNX has no form for 1: eigvals of complex64 \(at .*test_onnx_export"),
    "several": ({"fn": lambda x: (eg.fft.fft(x), eg.rand((2,)))}, MissingOpsError,
                r"complex64.*random numbers"),
    "a branch": ({"fn": lambda x: x if x.shape[0] < 5 else x + x, "dynamic": {"x": {0: "n"}}},
                 MissingOpsError, "different (things|tensors) at different sizes"),
    "a loop": ({"fn": lambda x: sum(x[i] for i in range(x.shape[0])),
                "dynamic": {"x": {0: "n"}}}, MissingOpsError, "different things at different size"),
    "a table": ({"fn": lambda x: x * eg.tensor(np.random.default_rng(0).random((x.shape[0], 1))),
                 "dynamic": {"x": {0: "n"}}}, MissingOpsError, "no arange"),
    "a half": ({"fn": lambda x: x[: x.shape[0] // 2], "dynamic": {"x": {0: "n"}}},
               MissingOpsError, "is not expressed by n="),
    "a fixed size": ({"fn": lambda x: x.reshape(12), "dynamic": {"x": {0: "n"}}}, ArgumentError,
                     "raises ShapeError"),
}  # fmt: skip


@pytest.mark.parametrize("case", _TABLE)
def test_bad_input_is_refused_and_writes_nothing(case: str, tmp_path: Path) -> None:
    changed, error, message = _TABLE[case]
    call: dict[str, Any] = {
        "fn": lambda x: x + 1, "inputs": (images(4, 3),), "path": "f.onnx", **changed
    }  # fmt: skip
    call["path"] = tmp_path / call["path"] if isinstance(call["path"], str) else call["path"]
    with pytest.raises(EverygradError, match=message) as found:
        eg.io.save_onnx(call.pop("fn"), call.pop("inputs"), call.pop("path"), **call)
    assert type(found.value) is error
    assert not list(tmp_path.iterdir())


def test_one_tensor_twice_is_refused(tmp_path: Path) -> None:
    x = images(2, 2)
    with pytest.raises(ArgumentError, match="inputs 0 and 1 are one tensor"):
        eg.io.save_onnx(lambda a, b: a + b, (x, x), tmp_path / "f.onnx")


def test_the_page_counts_right() -> None:
    """docs/models.md says how many ops are exported; the tests above are what it speaks of."""
    page = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")
    said = re.search(r"Of the (\d+) ops with samples in the registry (\d+) are exported", page)
    assert said is not None
    assert [*map(int, said.groups())] == [len(WITH_SAMPLES), len({*WITH_SAMPLES} - {*REFUSED})]
