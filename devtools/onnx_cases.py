"""The node cases of the onnx package, each run by `eg.io.load_onnx` and compared.

    python -m devtools.onnx_cases [part of a name]

runs all of them, those with operators expanded into their bodies too, and says what differs.
`tests/interop/test_onnx_nodes.py` runs the plain ones.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import everygrad as eg


class Named(NamedTuple):
    """A case whose stored numbers we do not give: why, and what holds instead."""

    reason: str
    holds: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], None]  # inputs, outputs, stored


def _zeros_and_ones(inputs: Sequence[Any], outputs: Sequence[Any], stored: Sequence[Any]) -> None:
    assert outputs[0].shape == stored[0].shape
    assert outputs[0].dtype == stored[0].dtype
    assert set(np.unique(outputs[0])) <= {0, 1}


def _two_half_units(inputs: Sequence[Any], outputs: Sequence[Any], stored: Sequence[Any]) -> None:
    wide = [v.astype(np.float32) for v in (outputs[0], stored[0])]
    np.testing.assert_allclose(wide[0], wide[1], rtol=2**-9)
    assert (np.abs(wide[0] - wide[1]) > 1e-3 * np.abs(wide[1])).mean() < 0.02


_RANDOM = Named("random draws: ONNX says the stored ones are for information", _zeros_and_ones)
DIFFERENT = {
    "test_bernoulli": _RANDOM,
    "test_bernoulli_double": _RANDOM,
    "test_bernoulli_seed": _RANDOM,
    "test_attention_4d_causal_fp16": Named(
        "the stored numbers are rounded to float16 after every step; two of 192 differ by one unit",
        _two_half_units,
    ),
}


# Cases that are refused when they are loaded, each with its reason.
REFUSED = {
    "test_gradient_of_add": "the operator Gradient asks for a part of the graph around it",
    "test_gradient_of_add_and_mul": "the operator Gradient asks for a part of the graph around it",
}


def cases(expanded: bool = False) -> list[Any]:
    """The plain cases, or those whose operators are expanded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases' own makers divide by 0 and overflow
        found = load_model_tests(kind="node")
    return [_read(c) for c in found if ("_expanded" in c.name) == expanded]


def stored_cases() -> list[Any]:
    """The cases of several nodes: those made here, and models that PyTorch once exported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            c
            for kind in ("simple", "pytorch-converted", "pytorch-operator")
            for c in load_model_tests(kind=kind)
        ]
    return [_read(c) for c in found]


def _read(case: Any) -> Any:
    """A case that lies in a folder, with its model and the files of its inputs and outputs."""
    if case.model_dir is None:
        return case
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = [
        (_values(data, "input", model.graph.input), _values(data, "output", model.graph.output))
        for data in sorted(folder.glob("test_data_set_*"))
    ]
    return replace(case, model=model, data_sets=sets)


def _values(folder: Path, kind: str, declared: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for i, info in enumerate(declared):
        path = folder / f"{kind}_{i}.pb"
        if not path.exists():  # the initializers of old files are inputs too
            break
        data, said = path.read_bytes(), info.type.WhichOneof("value")
        if said == "sequence_type":
            found.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        elif said == "optional_type":
            found.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
        else:
            found.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return found


def as_array(value: Any) -> Any:
    """A value of a case, or of ours, as NumPy's."""
    if isinstance(value, list | tuple):
        return [as_array(v) for v in value]
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, eg.Tensor):
        return value.detach().numpy()
    return value if value is None else np.asarray(value)


def allowed(case: Any, stored: Sequence[Any]) -> float:
    """The case's absolute tolerance. A transform rounds relative to its largest element: where the
    case allows 1e-7 beside elements of 450, a unit in the last place of these is allowed."""
    if case.model.graph.node[-1].op_type != "DFT":
        return float(case.atol)
    return max(case.atol, *(float(np.finfo(v.dtype).eps * np.abs(v).max()) for v in stored))


def same(got: Any, stored: Any, rtol: float, atol: float) -> None:
    """Compare by the rules of ONNX's own runner."""
    if isinstance(stored, list):
        assert isinstance(got, list)
        assert len(got) == len(stored)
        for g, s in zip(got, stored, strict=True):
            same(g, s, rtol, atol)
        return
    if stored is None:
        assert got is None
        return
    assert got.shape == stored.shape, (got.shape, stored.shape)
    if stored.dtype.kind in "OSU":
        assert [str(v) for v in got.flat] == [_text(v) for v in stored.flat]
        return
    assert got.dtype == stored.dtype, (got.dtype, stored.dtype)
    if stored.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)
    if stored.dtype.kind in "fc" or stored.dtype.name.startswith(("float", "bfloat")):
        wide = np.complex128 if stored.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), stored.astype(wide), rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(got, stored)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def check(case: Any) -> None:
    """Run one case and compare what it gives, or what holds instead where it is named."""
    named = DIFFERENT.get(case.name.removesuffix("_expanded"))
    module = eg.io.load_onnx(case.model)
    assert case.data_sets
    for inputs, outputs in case.data_sets:
        given = [as_array(v) for v in inputs]
        found = module(*given)
        got = [as_array(v) for v in (found if isinstance(found, tuple) else (found,))]
        stored = [as_array(v) for v in outputs]
        if named is not None:
            named.holds(given, got, stored)
            continue
        assert len(got) == len(stored)
        for g, s in zip(got, stored, strict=True):
            same(g, s, case.rtol, allowed(case, stored))


def failures(chosen: Sequence[Any]) -> dict[str, str]:
    """The cases that do not give what they should, and what they say."""
    found = {}
    for case in chosen:
        try:
            check(case)
        except Exception as error:
            found[case.name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return found


def main() -> int:
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    wrong = 0
    for kind in ("plain", "expanded", "whole models"):
        start = time.process_time()
        found = stored_cases() if kind == "whole models" else cases(kind == "expanded")
        chosen = [c for c in found if part in c.name and c.name not in REFUSED]
        refused = [c.name for c in found if c.name in REFUSED]
        failed = failures(chosen)
        for name, text in failed.items():
            print(f"{name}: {text}")
        named = sum(c.name.removesuffix("_expanded") in DIFFERENT for c in chosen)
        print(
            f"{kind}: {len(chosen)} cases, {len(chosen) - len(failed) - named} equal to the stored "
            f"outputs, {named} named, {len(refused)} refused, {len(failed)} wrong "
            f"({time.process_time() - start:.1f} s of processor time)"
        )
        wrong += len(failed)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
