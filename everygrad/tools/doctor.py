"""`python -m everygrad doctor`: versions, devices, cures, self-tests and accuracy.

What is found is kept in plain dictionaries, the ones `--json` prints. Nothing here raises: a check
that fails becomes a line. Each device is examined in a process of its own, so that a driver that
crashes or hangs becomes a line as well.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np

from everygrad.backends import base, disk_cache, thread_pool
from everygrad.errors import DeviceError, OutOfRangeError
from everygrad.ops.python.creation import tensor
from everygrad.ops.record.spec import REGISTRY
from everygrad.tools import accuracy, accuracy_special

try:
    from everygrad._jit.jit import jit
except ImportError as missing:  # without llvmlite there is no jit, and a doctor is needed
    _no_jit: ImportError | None = missing
else:
    _no_jit = None

Facts = dict[str, Any]
DEVICES = ("cpu", "cuda", "webgpu")
TIME_LIMIT = 300  # seconds for one device


def _words(error: BaseException) -> str:
    """An exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]


def guarded(check: Callable[[], Any]) -> Any:
    """What a check finds; of one that fails, {"error": why}."""
    try:
        return check()
    except Exception as error:
        return {"error": _words(error)}


# --- versions ------------------------------------------------------------------------------------


def _python() -> str:
    system = f"{platform.system()} {platform.machine()}"
    return f"{platform.python_version()} ({platform.python_implementation()}, {system})"


def _llvmlite() -> str:
    import llvmlite
    import llvmlite.binding as llvm

    return f"{llvmlite.__version__} (LLVM {'.'.join(map(str, llvm.llvm_version_info))})"


def _wgpu() -> str:
    import wgpu
    from wgpu.backends.wgpu_native import lib_version_info

    return f"{wgpu.__version__} (wgpu-native {'.'.join(map(str, lib_version_info))})"


def _cupy() -> str:
    import cupy

    runtime = cupy.cuda.runtime.runtimeGetVersion()
    return f"{cupy.__version__} (CUDA {runtime // 1000}.{runtime % 1000 // 10})"


_CUPY_CURE = "pip install 'everygrad[cuda13]', or 'everygrad[cuda12]' for a driver of CUDA 12"
VERSIONS: dict[str, tuple[Callable[[], str], str]] = {  # what tells it, the cure if it is missing
    "everygrad": (lambda: metadata.version("everygrad"), "pip install everygrad"),
    "Python": (_python, ""),
    "NumPy": (lambda: np.__version__, "pip install 'numpy>=2.1'"),
    "llvmlite": (_llvmlite, "pip install 'llvmlite>=0.45': it compiles the CPU's kernels"),
    "wgpu": (_wgpu, "pip install 'wgpu>=0.32'"),
    "CuPy": (_cupy, _CUPY_CURE),
}


def versions() -> Facts:
    """Each as {"version": ...}, or {"error": ..., "cure": ...}."""
    found: Facts = {}
    for name, (tell, cure) in VERSIONS.items():
        answer = guarded(tell)
        found[name] = {**answer, "cure": cure} if "error" in answer else {"version": answer}
    return found


# --- the machine ---------------------------------------------------------------------------------


def cache_facts() -> Facts:
    """Where compiled kernels are kept, and how much of it is used."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = disk_cache.from_environment(os.environ)
    if kept is None:
        why = [str(w.message) for w in caught] or ["switched off (EVERYGRAD_CACHE=0, or Windows)"]
        return {"on": False, "why": " ".join(why)}
    sizes = []
    with os.scandir(kept.path) as files:
        for file in files:
            with suppress(FileNotFoundError):  # other processes clear up meanwhile
                sizes.append(file.stat().st_size)
    used = {"entries": len(sizes), "bytes": sum(sizes), "limit": kept.limit}
    return {"on": True, "path": str(kept.path), **used}


def machine() -> Facts:
    """What all devices share."""
    cores = os.cpu_count() or 1
    return {"threads": thread_pool.num_threads(), "cores": cores, "cache": guarded(cache_facts)}


# --- devices -------------------------------------------------------------------------------------


def _processor() -> str:
    """The processor's name as its maker spells it, where the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor() or platform.machine()


def _cpu_facts(backend: Any) -> Facts:
    import llvmlite.binding as llvm

    wanted = ("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "amx-tile", "neon", "sve")
    features = llvm.get_host_cpu_features()
    return {
        "name": _processor(),
        "LLVM's name": llvm.get_host_cpu_name(),
        "features": ", ".join(f for f in wanted if features.get(f)),
    }


_SUBNORMALS = {
    False: "kept by +, - and *",
    True: "taken for 0 by +, - and *, as WGSL allows; division and functions keep them",
}
_ADVICE = "a software adapter: right but slow; a GPU here needs its vendor's driver"


def _webgpu_facts(backend: Any) -> Facts:
    import wgpu

    gpu = backend.gpu
    info = gpu.adapter.info
    others = [a.info for a in wgpu.gpu.enumerate_adapters_sync()]
    features = ("shader-f16", "shader-f64", "shader-int64", "subgroup", "timestamp-query")
    facts: Facts = {
        "name": f"{info['device']} ({info['backend_type']}, {info['adapter_type']})",
        "driver": info["description"],
        "limits": asdict(gpu.limits),
        "features": ", ".join(f for f in features if f in gpu.adapter.features),
        "adapters": [f"{i['device']} ({i['backend_type']})" for i in others],
        "subnormals": _SUBNORMALS[accuracy.flushes(backend.device)],
        "cooperative matrices": backend.cooperative_matrices(),
    }
    if info["adapter_type"] == "CPU":
        facts["note"] = _ADVICE
    return facts


def cudnn_fact(backend: Any) -> str:
    """The version of cuDNN, which convolutions on CUDA are faster by, or how to get it."""
    found = backend.gpu.driver.cudnn
    if found is None:
        return (
            "not found: convolutions are made of matrix products, which takes longer; "
            "pip install nvidia-cudnn-cu13 (or nvidia-cudnn-cu12)"
        )
    return f"{found.version // 10000}.{found.version // 100 % 100}.{found.version % 100}"


def _cuda_facts(backend: Any) -> Facts:
    import cupy

    props = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    driver = cupy.cuda.runtime.driverGetVersion()
    return {
        "name": props["name"].decode(),
        "driver": f"CUDA {driver // 1000}.{driver % 1000 // 10}",
        "limits": {
            "memory": props["totalGlobalMem"],
            "shared_bytes": props["sharedMemPerBlock"],
            "multiprocessors": props["multiProcessorCount"],
        },
        "compute capability": f"{props['major']}.{props['minor']}",
        "cuDNN": cudnn_fact(backend),
    }


_FACTS = {"cpu": _cpu_facts, "cuda": _cuda_facts, "webgpu": _webgpu_facts}


def _loads(*names: str) -> bool:
    """Whether one of these shared libraries is there."""
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def _importable(tell: Callable[[], str]) -> bool:
    try:
        tell()
    except ImportError:
        return False
    except Exception:  # it is there; what is wrong with it is said elsewhere
        return True
    return True


def _webgpu_cures() -> list[str]:
    if not _importable(_wgpu):
        return [VERSIONS["wgpu"][1]]
    if os.environ.get("EVERYGRAD_WEBGPU_ADAPTER"):
        return ["choose one that is there, or unset EVERYGRAD_WEBGPU_ADAPTER"]
    if sys.platform != "linux":
        return ["update the graphics driver"]
    loader = "" if _loads("libvulkan.so.1") else " libvulkan1"
    return [
        f"no Vulkan adapter: apt-get install mesa-vulkan-drivers{loader} (AMD, Intel, and one "
        "that runs on the CPU); an NVIDIA GPU needs NVIDIA's driver"
    ]


def _cuda_cures() -> list[str]:
    cures = []
    if not _loads("libcuda.so.1", "nvcuda.dll"):
        cures.append(
            "install NVIDIA's driver, if this machine has such a GPU: libcuda does not load"
        )
    if not _importable(_cupy):
        cures.append(_CUPY_CURE)
    return cures


def _cpu_cures() -> list[str]:
    return [] if _importable(_llvmlite) else [VERSIONS["llvmlite"][1]]


_CURES = {"cpu": _cpu_cures, "cuda": _cuda_cures, "webgpu": _webgpu_cures}


def _opened(name: str) -> Facts:
    """Whether a device is there. One that is missing is no fault, one that fails to open is."""
    try:
        backend = base.get(name)
    except (DeviceError, ImportError) as error:
        return {"found": False, "why": _words(error), "cures": guarded(_CURES[name])}
    except Exception as error:
        why = f"found, but it does not open: {_words(error)}"
        return {"found": True, "broken": why, "cures": guarded(_CURES[name])}
    cures = guarded(_CURES[name]) if name == "cpu" else []
    return {"found": True, "facts": guarded(lambda: _FACTS[name](backend)), "cures": cures}


# --- self-tests ----------------------------------------------------------------------------------


def _close(got: Any, want: Any, tolerance: float) -> None:
    """Raises if a tensor is not what it should be."""
    values = got.numpy()
    off = float(np.max(np.abs(values.astype(np.float64) - want)))
    if not off <= tolerance:
        raise ArithmeticError(f"a result is off by {off:.3g}; {tolerance:.3g} is allowed")


def _random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _add(device: str) -> None:
    x = _random(300, 400)
    _close(tensor(x, device=device) + tensor(x[0], device=device), x + x[0], 0.0)


def _matmul(device: str) -> None:
    x, y = _random(256, 192), _random(192, 320)
    got = tensor(x, device=device) @ tensor(y, device=device)
    _close(got, x.astype(np.float64) @ y, 2e-4)


def _softmax(device: str) -> None:
    x = _random(64, 1000)
    powers = np.exp(x.astype(np.float64))
    got = tensor(x, device=device).softmax(axis=-1)
    _close(got, powers / powers.sum(-1, keepdims=True), 1e-6)


def _backward(device: str) -> None:
    x, w = _random(64, 48), _random(48, 32)
    weight = tensor(w, device=device, requires_grad=True)
    (tensor(x, device=device) @ weight).tanh().mean().backward()
    out = np.tanh(x.astype(np.float64) @ w)
    _close(weight.grad, x.T.astype(np.float64) @ (1 - out * out) / out.size, 1e-6)


def _index_error(device: str) -> None:
    """A bad index raises by the time its result is read, and what follows works."""
    take = REGISTRY["take"].function
    x = tensor(_random(5, 3), device=device)
    try:
        take(x, tensor(np.array([0, 9], np.int32), device=device), axis=0).numpy()
    except OutOfRangeError:
        good = take(x, tensor(np.array([0, 4], np.int32), device=device), axis=0)
        _close(good, _random(5, 3)[[0, 4]], 0.0)
        return
    raise IndexError("index 9 of an axis of size 5 was taken without an error")


@cache
def _compiled() -> Any:
    if _no_jit is not None:
        raise _no_jit
    return jit(lambda x, y: (x * y + 1.0).sin().sum(axis=-1))


def _jit(device: str) -> None:
    x, y = _random(64, 512), _random(512)
    want = np.sin(x.astype(np.float64) * y + 1).sum(-1)
    for _ in range(2):
        _close(_compiled()(tensor(x, device=device), tensor(y, device=device)), want, 1e-3)


SELF_TESTS: dict[str, Callable[[str], None]] = {
    "add": _add,
    "matmul": _matmul,
    "softmax": _softmax,
    "backward": _backward,
    "index error": _index_error,
    "jit": _jit,
}


def _timed(test: Callable[[str], None], device: str) -> float:
    begun = time.perf_counter()
    test(device)
    return (time.perf_counter() - begun) * 1e3


def self_test(device: str) -> list[Facts]:
    """Each test twice: the first time kernels are compiled."""
    found: list[Facts] = []
    for name, test in SELF_TESTS.items():
        try:
            first, again = _timed(test, device), _timed(test, device)
        except Exception as error:
            found.append({"name": name, "ok": False, "error": _words(error)})
        else:
            found.append({"name": name, "ok": True, "first_ms": first, "again_ms": again})
    return found


def accuracy_facts(device: str) -> list[Facts]:
    """The errors of each function, in each way the device computes it."""
    found = []
    for function, column, error in accuracy.measure_all(device):
        if isinstance(error, Exception):
            facts: Facts = {"error": _words(error)}
        else:  # JSON has no infinity
            facts = {**error._asdict(), "at": [repr(x) for x in error.at]}
            if (wrong := accuracy.fault(function, error)) is not None:
                facts["fault"] = wrong
        found.append({"function": function, "column": column, **facts})
    return found


# --- a device in a process of its own ------------------------------------------------------------


def examine(name: str, quick: bool) -> Facts:
    """All about one device."""
    facts = {"name": name, **_opened(name)}
    if facts["found"] and "broken" not in facts:
        facts["tests"] = self_test(name)
        facts["accuracy"] = [] if quick else accuracy_facts(name)
    return facts


def examine_apart(name: str, quick: bool) -> Facts:
    """The same, by another process: whatever a driver does to it is told here."""
    command = [sys.executable, "-m", "everygrad", "doctor", "--json", "--here", "--device", name]
    try:
        result = subprocess.run(
            [*command, "--quick"] if quick else command,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
        )
        return dict(json.loads(result.stdout)["devices"][0])
    except subprocess.TimeoutExpired:
        why = f"it hung: no answer in {TIME_LIMIT} s"
    except OSError as error:
        why = f"no process could be started: {_words(error)}"
    except (ValueError, LookupError, TypeError):
        last = " ".join(result.stderr.split()[-60:])
        why = f"its process ended with status {result.returncode}: {last or 'it said nothing'}"
    return {"name": name, "found": True, "broken": why, "cures": guarded(_CURES[name])}


def examine_all(devices: Iterable[str], quick: bool, here: bool) -> Facts:
    """The whole report."""
    look = examine if here else examine_apart
    found = [look(name, quick) for name in devices]
    report: Facts = {"versions": versions(), "machine": machine(), "devices": found}
    return {**report, "works": all(map(works, found))}


def works(device: Facts) -> bool:
    """Whether a device does what it should; one that is not there does."""
    if not device["found"]:
        return True
    failed = [t for t in device.get("tests", ()) if not t["ok"]]
    failed += [a for a in device.get("accuracy", ()) if "error" in a or "fault" in a]
    return "broken" not in device and not failed


# --- as text -------------------------------------------------------------------------------------


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _version_lines(found: Facts) -> list[str]:
    lines = []
    for name, facts in found.items():
        text = facts.get("version")
        if text is None:
            cure = f"; {facts['cure']}" if facts["cure"] else ""
            text = f"not usable: {facts['error']}{cure}"
        lines.append(f"  {name:<10} {text}")
    return lines


def _machine_lines(found: Facts) -> list[str]:
    cache = found["cache"]
    if "error" in cache:
        text = cache["error"]
    elif cache["on"]:
        used = f"{cache['entries']} kernels, {_size(cache['bytes'])} of {_size(cache['limit'])}"
        text = f"{cache['path']}: {used}"
    else:
        text = f"off: {cache['why']}"
    return [
        f"  threads    {found['threads']} of {found['cores']} processors",
        f"  disk cache {text}",
    ]


def _fact_lines(facts: Facts) -> list[str]:
    lines = []
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in value.items())
        elif isinstance(value, list):
            value = "; ".join(value)
        lines.append(f"    {name}: {value}")
    return lines


def _test_line(test: Facts) -> str:
    if not test["ok"]:
        return f"    {test['name']:<12} FAILED: {test['error']}"
    return f"    {test['name']:<12} ok {test['first_ms']:9.1f} ms, again {test['again_ms']:.1f} ms"


def _device_lines(device: Facts) -> list[str]:
    if not device["found"]:
        lines = [f"{device['name']}: not found", f"    {device['why']}"]
    elif "broken" in device:
        lines = [f"{device['name']}: FAILED", f"    {device['broken']}"]
    else:
        state = "works" if works(device) else "FAILED"
        lines = [f"{device['name']}: {state}", *_fact_lines(device["facts"])]
    cures = device["cures"] if isinstance(device["cures"], list) else []
    lines += [f"    cure: {cure}" for cure in cures]
    return lines + [_test_line(t) for t in device.get("tests", ())]


def _accuracy_lines(report: Facts) -> list[str]:
    found = [a for d in report["devices"] for a in d.get("accuracy", ())]
    rows = accuracy.table(found)
    if not rows:
        return []
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    lines = ["".join(f"{c:<{w}}" for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    faults = [
        f"  FAILED: {a['function']} on {a['column']}: {a.get('error') or a['fault']}"
        for a in found
        if "error" in a or "fault" in a
    ]
    title = "largest error in float32 in ulp, normal / subnormal numbers (docs/accuracy.md)"
    return ["", title, *(f"  {line}" for line in lines), *faults]


def text_of(report: Facts) -> str:
    """The report for people."""
    lines = ["versions", *_version_lines(report["versions"])]
    lines += ["", "machine", *_machine_lines(report["machine"]), "", "devices"]
    lines += [f"  {line}" for d in report["devices"] for line in _device_lines(d)]
    lines += _accuracy_lines(report)
    end = "everything found works" if report["works"] else "something does not work: see FAILED"
    return "\n".join([*lines, "", end])


def page_of(report: Facts) -> str:
    """docs/accuracy.md, with what was measured now."""
    found = [a for d in report["devices"] for a in d.get("accuracy", ())]
    measured = []
    for device in report["devices"]:
        if device.get("accuracy"):
            facts = device["facts"]
            names = [str(facts[k]) for k in ("name", "driver", "LLVM's name") if k in facts]
            measured.append(f"{device['name']}: {'; '.join(names)}")
    used = [f"{n} {v['version']}" for n, v in report["versions"].items() if "version" in v]
    names = [d["name"] for d in report["devices"] if d.get("accuracy")]
    more = accuracy_special.section(names) if names else ""
    return accuracy.page(found, [*measured, f"with {', '.join(used)}"], more)


def main(
    devices: Iterable[str],
    *,
    quick: bool = False,
    json_output: bool = False,
    table: bool = False,
    here: bool = False,
) -> int:
    """Print the report; 0 if everything found works."""
    report = examine_all(devices, quick and not table, here)
    if json_output:
        print(json.dumps(report, indent=2))
    else:
        print(page_of(report).rstrip("\n") if table else text_of(report))
    return 0 if report["works"] else 1
