"""export_web: pages whose numbers, in headless Chromium, are Python's; refusals, all at once."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import everygrad as eg
from everygrad import dtypes, nn
from everygrad.backends import base
from everygrad.backends.webgpu.kernels.single_op import LaunchCache
from everygrad.errors import ArgumentError, EverygradError
from everygrad.io import export_web
from everygrad.ops.record.spec import REGISTRY
from tests.backends.webgpu.test_jit import _in_float32
from tests.registry.test_jit_ops import KEEPS_PLACES, as_function, loss_of
from tests.support.checks import arrays_of, in_dtype, is_float

pytestmark = pytest.mark.skipif(
    "webgpu" not in os.environ.get("EVERYGRAD_TEST_DEVICES", ""),
    reason="this run does not promise webgpu (EVERYGRAD_TEST_DEVICES)",
)
DEVICE = "webgpu"
ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "demo-output"
FLAGS = [
    *("--headless=new", "--no-sandbox", "--enable-unsafe-webgpu"),
    "--use-webgpu-adapter=swiftshader",
]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder's address while it is served."""
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("Playwright is missing: tools/bootstrap.sh dev, or pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("Chromium is missing: sudo apt-get install chromium")
    with sync_playwright() as tool:
        # Playwright's own --headless would be the old shell, which has no WebGPU
        opened = tool.chromium.launch(
            executable_path=chromium, args=FLAGS, ignore_default_args=["--headless"]
        )
        yield opened
        opened.close()


@contextlib.contextmanager
def opened(browser: Any, folder: Path, complains: bool = False) -> Iterator[Any]:
    """The page of an exported folder; fails if the browser complains of anything."""
    complaints: list[str] = []
    page = browser.new_page()
    page.on("console", lambda m: complaints.append(m.text) if m.type != "log" else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    with served(folder) as address:
        page.goto(address)
        page.wait_for_function("document.getElementById('say').textContent.indexOf('loading')")
        yield page
        page.close()
    # SwiftShader is asked for by name, and Chromium says that it is slow
    others = [c for c in complaints if "swiftshader" not in c.lower()]
    assert complains or others == []


RUN = """async (given) => {
  const {load} = await import("./everygrad.js");
  const model = await load(".");
  const plain = (a) => Array.from(a, (x) => typeof x === "bigint" ? Number(x) : x);
  const outputs = [];
  for (let i = 0; i < 2; i++) outputs.push((await model.run(given)).map(plain));
  return outputs;
}"""


def check(browser: Any, folder: Path, fn: Any, *inputs: Any, tolerance: float = 1e-4) -> None:
    """Python's results and the page's, on the same inputs; twice: a run must leave no trace."""
    tensors = [eg.tensor(a, device=DEVICE) for a in inputs]
    export_web(fn, [eg.zeros_like(t) for t in tensors], folder)
    want = fn(*tensors)
    want = [want] if isinstance(want, eg.Tensor) else list(want)
    with opened(browser, folder) as page:
        assert "commands in" in page.inner_text("#say"), page.inner_text("#say")
        for got in page.evaluate(RUN, [a.reshape(-1).tolist() for a in inputs]):
            for g, w in zip(got, want, strict=True):
                expected = w.detach().to("cpu").numpy()
                made = np.array(g, np.float64).reshape(expected.shape)
                np.testing.assert_allclose(made, expected, rtol=tolerance, atol=tolerance)


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


# --- numbers -------------------------------------------------------------------------------------


def test_an_mlp(browser: Any, tmp_path: Path) -> None:
    eg.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 5)
    )
    check(browser, tmp_path, model.to(DEVICE), normal(33, 20))


def test_softmax_layer_norm_and_gather(browser: Any, tmp_path: Path) -> None:
    eg.manual_seed(2)
    table = eg.randn((50, 24)).to(DEVICE)
    norm = nn.LayerNorm(24).to(DEVICE)
    constant = eg.tensor(normal(7, 7), device=DEVICE)

    @eg.jit
    def fn(words: Any, where: Any) -> Any:
        x = norm(eg.take(table, words, axis=0))
        scores = nn.functional.softmax(x @ x.mT / 5.0 + constant, axis=-1)
        picked = eg.gather(scores, where, axis=1)
        return {"picked": picked.mT, "largest": scores.argmax(axis=-1), "high": scores > 0.2}

    words = np.random.default_rng(0).integers(0, 50, (7,))
    where = np.random.default_rng(1).integers(0, 7, (7, 3)).astype(np.int32)
    check(browser, tmp_path, lambda a, b: list(fn(a, b).values()), words, where)


def test_more_operands_than_a_browser_binds(browser: Any, tmp_path: Path) -> None:
    held = [eg.tensor(normal(6) + i, device=DEVICE) for i in range(20)]

    def fn(x: Any) -> Any:
        for t in held:
            x = x * 0.9 + t
        return x, eg.concat([x, *held], axis=0)

    check(browser, tmp_path, fn, normal(6))
    plan = json.loads((tmp_path / "model.json").read_text())
    assert max(k["inputs"] + k["outputs"] for k in plan["kernels"]) <= 8


def test_memory_serves_again(browser: Any, tmp_path: Path) -> None:
    eg.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(12)]
    check(browser, tmp_path, nn.Sequential(*layers).to(DEVICE), normal(4, 16))
    plan = json.loads((tmp_path / "model.json").read_text())
    assert len(plan["commands"]) == 24
    assert len(plan["buffers"]) <= 2 + len(plan["weights"]) + 2


def test_views_constants_and_empty_results(browser: Any, tmp_path: Path) -> None:
    def fn(x: Any, flag: Any) -> Any:
        steps = eg.arange(4, dtype="float32", device=DEVICE)
        return x, x[::-1, 1:].mT, x + steps, eg.where(flag, x, -x), x[:0], steps.reshape(2, 2)

    check(browser, tmp_path, fn, normal(3, 4), np.eye(3, 4) > 0)


def test_gradients_are_functions_too(browser: Any, tmp_path: Path) -> None:
    check(browser, tmp_path, eg.grad(lambda x: (eg.sin(x) * x).sum()), normal(4, 5))


def test_an_index_out_of_range_is_named(browser: Any, tmp_path: Path) -> None:
    table = eg.tensor(normal(3), device=DEVICE)
    export_web(lambda i: eg.take(table, i - 1, axis=0), eg.tensor([1, 2], device=DEVICE), tmp_path)
    call = 'async (i) => { try { return String(await (await (await import("./everygrad.js")).load()).run([i])) } catch (e) { return String(e) } }'  # noqa: E501
    with opened(browser, tmp_path) as page:
        said = page.evaluate(call, [1, 9])
        assert said == "RangeError: take: index 8 is out of range for an axis of size 3"
        assert "Error" not in page.evaluate(call, [1, 3])
        assert "got 3" in page.evaluate(call, [1, 2, 3])
    table.to("cpu")  # what recording found on inputs that were not there is forgotten


# --- the example ---------------------------------------------------------------------------------

DRAWN = {
    1: [(110, 90), (150, 50), (150, 240)],
    4: [(170, 40), (80, 170), (220, 170), (170, 170), (170, 100), (170, 250)],
    7: [(70, 60), (210, 60), (120, 240)],
}


def draw(page: Any, points: list[tuple[int, int]]) -> None:
    box = page.locator("#paper").bounding_box()
    page.mouse.move(box["x"] + points[0][0], box["y"] + points[0][1])
    page.mouse.down()
    for x, y in points[1:]:
        page.mouse.move(box["x"] + x, box["y"] + y, steps=8)
    page.mouse.up()


def demo_model(weights: Path) -> Any:
    """The demo's network, with the weights of an exported page."""
    spec = importlib.util.spec_from_file_location("digits", ROOT / "examples/digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.network().eval()
    state = {k: eg.tensor(v) for k, v in load_file(weights).items()}
    model.load_state_dict({k: t for k, t in state.items() if k[0].isdigit()}, strict=False)
    return model


def test_a_digit_is_drawn_and_recognised(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    command = [sys.executable, ROOT / "examples/web_digits/export.py", "--out", folder]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=env, cwd=tmp_path, check=True, timeout=300)  # no weights: trains
    model = demo_model(folder / "weights.safetensors")
    PICTURES.mkdir(exist_ok=True)
    with opened(browser, folder) as page:
        for digit, points in DRAWN.items():
            page.click("#clear")
            draw(page, points)
            page.wait_for_timeout(300)
            latest = page.evaluate("window.latest")
            image = eg.tensor(np.array(latest["pixels"], np.float32).reshape(1, 1, 8, 8))
            with eg.no_grad():
                want = nn.functional.softmax(model(image), axis=1).numpy()[0]
            np.testing.assert_allclose(latest["probabilities"], want, atol=1e-4)
            assert int(want.argmax()) == digit
        page.screenshot(path=PICTURES / "web_digits.png")


def test_the_demonstration_page(browser: Any, tmp_path: Path) -> None:
    def scaled(x: Any, factor: Any) -> Any:
        return x * factor, x.sum()

    PICTURES.mkdir(exist_ok=True)
    export_web(scaled, (eg.zeros((2, 3), device=DEVICE), eg.zeros((), device=DEVICE)), tmp_path)
    with opened(browser, tmp_path) as page:
        page.fill("textarea >> nth=0", "1 2 3\n4 5 6.5")
        page.fill("textarea >> nth=1", "2")
        page.click("#run")
        page.wait_for_function("document.querySelectorAll('pre')[1].textContent === '21.5'")
        assert page.inner_text("pre >> nth=0").split() == ["2", "4", "6", "8", "10", "13"]
        page.screenshot(path=PICTURES / "web_page.png")
        page.fill("textarea >> nth=1", "2 3")
        page.click("#run")
        page.wait_for_function("document.getElementById('say').className === 'wrong'")
        assert page.inner_text("#say") == "factor is float32[], 1 elements; got 2"


def test_a_kernel_that_does_not_compile_is_named(browser: Any, tmp_path: Path) -> None:
    export_web(lambda x: x * 2.0, eg.zeros((3,), device=DEVICE), tmp_path)
    kernels = tmp_path / "kernels.wgsl"
    kernels.write_text(kernels.read_text().replace("fn main", "fn main(x"))
    with opened(browser, tmp_path, complains=True) as page:
        assert "the kernel fused multiply does not compile:\nline" in page.inner_text("#say")


# --- every shader --------------------------------------------------------------------------------

MIXED = (dtypes.float16, dtypes.int32, dtypes.int64)
COMPILE = """async (sources) => {
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const wrong = [];
  for (const code of sources) {
    device.pushErrorScope("validation");
    const module = device.createShaderModule({code});
    const {messages} = await module.getCompilationInfo();
    const error = await device.popErrorScope();
    const said = messages.filter((m) => m.type === "error").map((m) => m.message);
    if (said.length || error) wrong.push([code, said.join("; ") || error.message]);
  }
  return wrong;
}"""


def called(op: Any, sample: Any, derived: bool) -> None:
    """An op eagerly and jitted, and its derivative."""
    function = as_function(op, sample)
    arrays = arrays_of(sample)
    given = [eg.tensor(a, device=DEVICE) for a in arrays]
    function(*given)
    eg.jit(function)(*given)
    wanted = [i for i, a in enumerate(arrays) if is_float(a)]
    if derived and wanted and not op.constant and op.family != "movement":
        loss = _in_float32(loss_of(function))
        eg.jit(eg.grad(loss, wanted))(*given)


def written(ops: list[Any]) -> dict[str, str]:
    """The kernels that these ops are made of, by source; none of them runs."""
    dev: Any = base.get(DEVICE)
    sources: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch, dev.gpu.lock:
        patch.setattr(dev, "launch_cache", LaunchCache())
        patch.setattr(dev.gpu, "pipeline", lambda name, text, *_: sources.setdefault(text, name))
        patch.setattr(dev.gpu, "record", lambda kernel, blocks: None)
        for op, dtype in itertools.product(ops, (*MIXED, dtypes.float32)):
            # in float32 all of them
            for sample in itertools.islice(op.samples(), None if dtype is dtypes.float32 else 1):
                with contextlib.suppress(EverygradError), np.errstate(invalid="ignore"):
                    called(op, in_dtype(sample, dtype), dtype is dtypes.float32)
    return sources


def test_chrome_accepts_every_shader(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<link rel=icon href="data:,"><p id=say></p>')
    sources = written([op for op in REGISTRY.values() if op.name in KEEPS_PLACES])
    assert len(sources) > 500
    with opened(browser, tmp_path) as page:
        assert len(page.evaluate(COMPILE, ["fn broken", next(iter(sources))])) == 1
        wrong = page.evaluate(COMPILE, list(sources))
    assert [(sources[code], said) for code, said in wrong] == []


# --- refusals ------------------------------------------------------------------------------------


def refusal(fn: Any, inputs: Any, folder: Path) -> str:
    with pytest.raises(ArgumentError, match="cannot run in a browser") as caught:
        export_web(fn, inputs, folder / "none")
    assert not (folder / "none").exists()
    return str(caught.value)


def test_everything_in_the_way_is_listed_at_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5)).to(DEVICE)
    before = model.state_dict()["0.running_mean"].to("cpu").numpy().copy()

    def fn(x: Any, scale: float) -> Any:
        wide = x.astype("float64").sum().astype("float32")
        return (model(x) * scale * wide).astype("float16")

    said = refusal(fn, (eg.ones((4, 3, 2, 2), device=DEVICE), 0.5), tmp_path)
    for part in (
        "input 1 is 0.5 (float)",
        "it changes 0.num_batches_tracked (int64[]), 0.running_mean (float32[3])",
        "it draws random numbers at",
        "float64 at",
        "output 0 is float16",
        "model.eval()",
    ):
        assert part in said
    assert said.count("\n  - ") == 5
    np.testing.assert_array_equal(model.state_dict()["0.running_mean"].to("cpu").numpy(), before)


def test_the_wrong_device_is_named(tmp_path: Path) -> None:
    said = refusal(lambda x: x * 2, eg.ones((3,)), tmp_path)
    assert 'it runs on cpu, a page on WebGPU; move the model and the inputs: x.to("webgpu")' in said


def test_one_tensor_for_two_inputs(tmp_path: Path) -> None:
    x = eg.ones((3,), device=DEVICE)
    assert "inputs 0 and 1 are one tensor" in refusal(lambda a, b: a + b, (x, x), tmp_path)


def test_kept_tensors_and_no_results(tmp_path: Path) -> None:
    kept: list[Any] = []
    x = eg.full((3,), 2.0, device=DEVICE)
    said = refusal(lambda x: kept.append(x * 3.0), x, tmp_path)
    assert "it keeps tensors that it makes at" in said
    assert "it returns nothing" in said
    np.testing.assert_array_equal(kept[0].to("cpu").numpy(), np.full(3, 6.0))


def test_large_buffers(tmp_path: Path) -> None:
    x = eg.zeros((1,), device=DEVICE)

    def fn(x: Any) -> Any:
        big = eg.broadcast_to(x, (34 << 20,)) * 2.0
        return big + 1.0

    said = refusal(fn, x, tmp_path)
    assert "takes 136 MB, and a browser binds 128 MB at once; split it" in said


def test_what_is_no_function_and_no_folder(tmp_path: Path) -> None:
    x = eg.ones((3,), device=DEVICE)
    with pytest.raises(ArgumentError, match="takes a function, got int"):
        export_web(3, x, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="example_inputs is a dict; give the arguments as a t"):
        export_web(lambda x: x, {"x": x}, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="is a file; name a folder"):
        export_web(lambda x: x, x, tmp_path / "file")
