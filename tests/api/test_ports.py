"""Programs written for PyTorch, run with everygrad in its place: the same numbers, and few edits.

`ports/*.py` say `import torch`. They run as they are under PyTorch; under everygrad `torch` is this
package, and the lines of EDITS are other ones.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg

PORTS = Path(__file__).parent / "ports"
# program -> what a port must change; values never change in place, and views cannot be written to
EDITS: dict[str, dict[str, str]] = {
    "nanogpt": {},
    "llama": {
        "    probs_sort.div_(probs_sort.sum(dim=-1, keepdim=True))": (
            "    probs_sort = probs_sort / probs_sort.sum(dim=-1, keepdim=True)"
        ),
    },
    "seq2seq": {},
    "images": {
        "res.append(correct_k.mul_(100.0 / batch_size))": (
            "res.append(correct_k.mul(100.0 / batch_size))"
        ),
        ".double().div_(255)": ".double().div(255)",
        "    x.sub_(mean)": "    x = x.sub(mean)",
    },
}
_PLACES = (
    *("nn", "nn.functional", "nn.utils", "nn.utils.rnn", "optim", "optim.lr_scheduler"),
    *("optim.swa_utils", "utils.data", "backends.cudnn", "cuda.amp"),
)
MODULES = {
    "torch": eg,
    **{f"torch.{place}": import_module(f"everygrad.{place}") for place in _PLACES},
}


def ported(name: str, folder: Path) -> dict[str, Any]:
    """The program with its edits, everygrad standing for PyTorch."""
    text = (PORTS / f"{name}.py").read_text(encoding="utf-8")
    for old, new in EDITS[name].items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for module, ours in MODULES.items():
            patch.setitem(sys.modules, module, ours)
        patch.setitem(sys.modules, "__port__", eg)
        return runpy.run_path(str(path), run_name="__port__")


def original(name: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__port__", torch)
        return runpy.run_path(str(PORTS / f"{name}.py"), run_name="__port__")


def copied(theirs: Any, ours: Any) -> None:
    """The weights of a model of PyTorch's into one of ours, in float64."""
    theirs.double()
    ours.to(eg.float64)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})


def test_few_edits() -> None:
    counts = {name: len(edits) for name, edits in EDITS.items()}
    assert counts == {"nanogpt": 0, "llama": 1, "seq2seq": 0, "images": 3}


def test_nanogpt(tmp_path: Path) -> None:
    ours, theirs = ported("nanogpt", tmp_path), original("nanogpt")
    data = np.random.default_rng(2).integers(0, 29, 400).astype(np.uint16)
    models = [program["GPT"](program["GPTConfig"]()) for program in (ours, theirs)]
    copied(models[1], models[0])
    assert models[0].get_num_params() == models[1].get_num_params()
    losses = [p["train"](m, data, 5) for p, m in zip((ours, theirs), models, strict=True)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-10)
    assert losses[0][-1] != losses[0][0]
    weights = [dict(m.named_parameters()) for m in models]
    assert weights[0].keys() == weights[1].keys()
    for name, w in weights[0].items():
        want = weights[1][name].detach().numpy()
        np.testing.assert_allclose(w.detach().numpy(), want, rtol=1e-7, atol=1e-10)
    held = [float(p["estimate_loss"](m, data)) for p, m in zip((ours, theirs), models, strict=True)]
    np.testing.assert_allclose(held[0], held[1], rtol=1e-5)
    out = models[0].generate(eg.zeros((2, 1), dtype=eg.long), 20, top_k=5)
    assert out.shape == (2, 21)


def test_nanogpt_compiled(tmp_path: Path) -> None:
    program = ported("nanogpt", tmp_path)
    model = program["GPT"](program["GPTConfig"]())
    x = eg.randint(29, (2, 16))
    step = eg.compile(lambda a, b: model(a, b)[1])
    np.testing.assert_allclose(step(x, x).item(), model(x, x)[1].item(), rtol=1e-5)


def test_llama(tmp_path: Path) -> None:
    ours, theirs = ported("llama", tmp_path), original("llama")
    torch.manual_seed(0)
    models = [program["Transformer"](program["ModelArgs"]()) for program in (ours, theirs)]
    models[0].load_state_dict({k: v.numpy() for k, v in models[1].state_dict().items()})
    tokens = np.random.default_rng(0).integers(0, 31, (3, 7))
    for start, part in ((0, tokens), (7, tokens[:, :1]), (8, tokens[:, 1:2])):
        got = models[0](eg.tensor(part), start)
        want = models[1](torch.tensor(part), start)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-5, atol=2e-6)
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    greedy = [
        p["generate"](m, prompts, 6, temperature=0)
        for p, m in zip((ours, theirs), models, strict=True)
    ]
    assert greedy[0] == greedy[1]
    drawn = ours["generate"](models[0], prompts, 6)
    assert [row[:3] for row in drawn] == [[1, 2, 3], [4, 5, 6]]
    assert all(0 <= t < 31 for row in drawn for t in row)


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")  # PyTorch's of where `cuda.amp` went
@pytest.mark.parametrize(("name", "model"), [("seq2seq", "Seq2Seq"), ("images", "ResNet")])
def test_training_scripts(
    name: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, rates, norms and scores of a whole script, with its checkpoint."""
    # torch.testing, which other tests import, forbids programs to set flags
    state = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(state, "__allow_nonbracketed_mutation_flag", True)
    programs = ported(name, tmp_path), original(name)
    models = [program[model]() for program in programs]
    copied(models[1], models[0])
    found = [
        program["train"](m, str(tmp_path / f"{i}.pt"))
        for i, (program, m) in enumerate(zip(programs, models, strict=True))
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-9)
    assert len(found[0]) > 8
