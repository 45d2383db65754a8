"""The examples beside the digits and the GPT, at sizes of seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from examples import sentence_encoder

ROOT = Path(__file__).parents[2]
EXAMPLES = ["sentence_encoder"]


def run(script: str, *given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / script), *given]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_says_how_it_is_called(name: str) -> None:
    result = run(f"{name}.py", "--help")
    assert result.returncode == 0, result.stderr
    assert "--device" in result.stdout


# --- the sentence encoder --------------------------------------------------------------------

REFERENCE = json.loads((Path(__file__).parent / "minilm_reference.json").read_text("utf-8"))["rows"]


def the_encoder(device: str, jit: bool = False) -> sentence_encoder.SentenceEncoder:
    if find_spec(sentence_encoder.PACKAGE) is None:
        if device == "cuda":  # GPU machines may have no way to install more
            pytest.skip(f"{sentence_encoder.PACKAGE} is not installed on this GPU machine")
        pytest.fail(f"{sentence_encoder.PACKAGE} is missing: tools/bootstrap.sh dev")
    return opened(device, jit)


@lru_cache
def opened(device: str, jit: bool) -> sentence_encoder.SentenceEncoder:
    return sentence_encoder.SentenceEncoder(sentence_encoder.model_folder(), device, jit)


def test_the_tokens_are_those_of_the_original_tokenizer() -> None:
    encoder = the_encoder("cpu")
    assert len(REFERENCE) == 12
    for row in REFERENCE:
        assert encoder.tokens(row["sentence"]) == row["tokens"]


@pytest.mark.parametrize("jit", [False, True])
def test_sentences_have_the_vectors_of_sentence_transformers(jit: bool) -> None:
    found = the_encoder("cpu", jit).encode([row["sentence"] for row in REFERENCE], batch=5)
    expected = np.array([row["vector"] for row in REFERENCE])
    assert expected.shape == (12, 384)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_every_device_gives_the_vectors_of_sentence_transformers(device: str) -> None:
    rows = REFERENCE[:3]
    found = the_encoder(device).encode([row["sentence"] for row in rows])
    np.testing.assert_allclose(found, np.array([row["vector"] for row in rows]), rtol=0, atol=1e-5)


def test_the_sentence_encoder_as_a_program() -> None:
    the_encoder("cpu")  # or say what is missing
    result = run("sentence_encoder.py")
    assert result.returncode == 0, result.stderr
    table = [line.split("   ")[0].split() for line in result.stdout.splitlines()]
    assert table[0][:3] == ["1.0000", "0.6660", "0.1046"]  # as its documentation prints them
    assert table[2][:3] == ["0.1046", "0.1411", "1.0000"]
    ranked = run("sentence_encoder.py", "--query", "Who went to see the football match?")
    assert ranked.stdout.splitlines()[0].endswith("He drove to the stadium.")
