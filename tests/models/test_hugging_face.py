"""Networks of transformers, saved as folders, loaded here: equal outputs, gradients and texts."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from devtools.zoo import torchvision_schemas
from everygrad.io.hugging_face import renamed

torchvision_schemas.define()
transformers: Any = importlib.import_module("transformers")

SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
GQA = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3}
ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
STRETCHED = {
    **{"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0},
    **{"high_freq_factor": 4.0, "original_max_position_embeddings": 32},
}
DECODERS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            **{"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64},
            initializer_range=0.3,
            **ENDS,
        )
    ),
    "gpt2-untied": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            **{"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64},
            **{"tie_word_embeddings": False, "scale_attn_by_inverse_layer_idx": True},
            **{"activation_function": "relu", "n_inner": 30},
            **ENDS,
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GQA, **ENDS)),
    "llama-3": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **{**GQA, "head_dim": 8, "attention_bias": True, "mlp_bias": True},
            **{"rope_parameters": STRETCHED, "tie_word_embeddings": True},
            **ENDS,
        )
    ),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**GQA, sliding_window=5, **ENDS)
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            **GQA,
            **{"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            **ENDS,
        )
    ),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**GQA, head_dim=8, **ENDS)
    ),
}
ENCODERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
    "vit": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**_without_words(), image_size=12, patch_size=4, num_labels=5)
    ),
}
NETWORKS = {**DECODERS, **ENCODERS}


def _without_words() -> dict[str, int]:
    return {k: v for k, v in SIZES.items() if k != "vocab_size"}


def made(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """PyTorch's network with random weights, also where it starts with zeros."""
    torch.manual_seed(0)
    model = NETWORKS[name]().to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


def exact(model: Any) -> Any:
    """The referee computes norms and angles in float32, whatever its dtype: here in float64."""
    for norm in [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]:
        norm.forward = _norm(norm)
    rope = getattr(getattr(model, "model", None), "rotary_emb", None)
    if rope is None:
        return model
    config = model.config
    table = config.rope_parameters
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turns = table["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if table["rope_type"] == "llama3":
        wave = 2 * math.pi / turns
        old = table["original_max_position_embeddings"]
        low, high = old / table["low_freq_factor"], old / table["high_freq_factor"]
        between = (old / wave - table["low_freq_factor"]) / (
            table["high_freq_factor"] - table["low_freq_factor"]
        )
        mixed = (1 - between) * turns / table["factor"] + between * turns
        turns = torch.where(wave > low, turns / table["factor"], turns)
        turns = torch.where((wave >= high) & (wave <= low), mixed, turns)

    def angles(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = position_ids[..., None].double() * turns
        found = torch.cat([found, found], -1)
        return found.cos().to(x.dtype), found.sin().to(x.dtype)

    rope.forward = angles
    return model


def _norm(norm: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: (
        norm.weight * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + norm.variance_epsilon)
    )


def inputs_of(name: str) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(1)
    if name == "vit":
        return rng.standard_normal((2, 3, 12, 12))
    return rng.integers(1, 61, (2, 9))


def output_of(out: Any) -> Any:
    """The tensor of a result that stands for it."""
    for name in ("logits", "last_hidden_state"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    return out


def theirs(name: str, model: Any, given: Any) -> torch.Tensor:
    tensor = torch.tensor(given)
    return output_of(model(tensor.to(model.dtype) if name == "vit" else tensor))


def ours(name: str, model: Any, given: Any) -> Any:
    return output_of(model(eg.tensor(given, dtype=model_dtype(model) if name == "vit" else None)))


def model_dtype(model: Any) -> Any:
    return next(iter(model.parameters())).dtype


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = exact(made(name))
    reference.save_pretrained(tmp_path)
    model = eg.models.load_hf(tmp_path)
    given = inputs_of(name)
    expected = theirs(name, reference, given)
    found = ours(name, model, given)
    np.testing.assert_allclose(found.detach().numpy(), expected.detach(), rtol=1e-10, atol=1e-10)

    weight = np.random.default_rng(2).standard_normal(expected.shape)
    (expected * torch.tensor(weight)).sum().backward()
    (found * eg.tensor(weight)).sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    saved = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}
    assert len(gradients) == len(saved) > 10
    sums = sorted(float((g * g).sum()) for g in gradients.values())
    assert sums == pytest.approx(sorted(float((g * g).sum()) for g in saved.values()), rel=1e-9)
    here = renamed(saved, model.rename)
    same = [n for n in here if n in gradients]
    assert len(same) > 5
    for key in same:
        np.testing.assert_allclose(gradients[key].numpy(), here[key], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NETWORKS)
def test_float32_sharded_and_compiled(name: str, tmp_path: Path) -> None:
    reference = made(name, torch.float32)
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    model = eg.models.load_hf(tmp_path)
    given = inputs_of(name)
    with torch.no_grad():
        expected = theirs(name, reference, given)
    assert model_dtype(model) == eg.float32
    np.testing.assert_allclose(
        ours(name, model, given).detach().numpy(), expected, rtol=1e-5, atol=2e-5
    )
    compiled = eg.jit(model)
    for _ in range(2):
        found = ours(name, compiled, given)
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_bfloat16_is_kept_or_cast(name: str, tmp_path: Path) -> None:
    reference = made(name, torch.bfloat16)
    reference.save_pretrained(tmp_path)
    kept = eg.models.load_hf(tmp_path)
    assert {p.dtype for p in kept.parameters()} == {eg.bfloat16}
    cast = eg.models.load_hf(tmp_path, dtype="float32")
    with torch.no_grad():
        again = type(reference).from_pretrained(tmp_path, dtype=torch.float32)
        expected = theirs(name, again.eval(), inputs_of(name))
    found = ours(name, cast, inputs_of(name))
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-5, atol=2e-5)
    rough = ours(name, kept, inputs_of(name)).astype("float32").detach().numpy()
    assert np.abs(rough - expected.numpy()).max() < 0.05 * np.abs(expected.numpy()).max()


def test_padding_is_not_looked_at(tmp_path: Path) -> None:
    tokens = np.random.default_rng(3).integers(1, 61, (2, 7))
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3])
    for name in ("bert", "llama", "mistral"):
        reference = exact(made(name))
        reference.save_pretrained(tmp_path / name)
        model = eg.models.load_hf(tmp_path / name)
        expected = output_of(reference(torch.tensor(tokens), torch.tensor(mask)))
        found = output_of(model(eg.tensor(tokens), eg.tensor(mask))).detach().numpy()
        real = mask.astype(bool)
        np.testing.assert_allclose(found[real], expected.detach()[real], rtol=1e-10, atol=1e-10)


# --- generation ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_generation_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    reference = exact(made(name))
    reference.save_pretrained(tmp_path)
    model = eg.models.load_hf(tmp_path)
    prompt = np.random.default_rng(4).integers(1, 61, (2, 5))
    expected = reference.generate(
        torch.tensor(prompt),
        attention_mask=torch.ones((2, 5), dtype=torch.int64),
        **{"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0},
    )
    compiled = model.generate(eg.tensor(prompt), 12)
    assert compiled.tolist() == expected.tolist()
    assert len({*compiled[0, 5:].tolist()}) > 1  # no network that repeats one token
    rows = model.generate([prompt[0].tolist(), prompt[1].tolist()[:3]], 6)
    alone = model.generate([prompt[1].tolist()[:3]], 6, jit=False)
    assert rows[0] == expected[0, :11].tolist()
    assert rows[1] == alone[0]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("gpt2")
    made("gpt2", torch.float32).save_pretrained(folder)
    return eg.models.load_hf(folder)


def test_rows_end_at_their_end_token(gpt2: Any) -> None:
    free = gpt2.generate(eg.tensor([[1, 2], [3, 4]]), 8, jit=False)
    end = free[0, 4].item()
    ended = gpt2.generate(eg.tensor([[1, 2], [3, 4]]), 8, eos_token_id=end, pad_token_id=60)
    row = free[0].tolist()
    stop = row.index(end, 2)
    assert ended[0].tolist()[: stop + 1] == row[: stop + 1]
    assert set(ended[0].tolist()[stop + 1 :]) <= {60}
    assert gpt2.generate([[1, 2]], 8, eos_token_id=end) == [row[: stop + 1]]


def test_sampling_follows_its_seed_and_its_bounds(gpt2: Any) -> None:
    prompt = [[1, 2, 3]] * 4
    draw = {"do_sample": True, "temperature": 1.5}
    first = gpt2.generate(prompt, 6, seed=1, **draw)
    assert first == gpt2.generate(prompt, 6, seed=1, **draw)
    assert first == gpt2.generate(prompt, 6, seed=1, jit=False, **draw)
    assert first != gpt2.generate(prompt, 6, seed=2, **draw)
    assert len({tuple(row) for row in first}) > 1
    greedy = gpt2.generate(prompt, 6)
    assert gpt2.generate(prompt, 6, seed=3, top_k=1, **draw) == greedy
    assert gpt2.generate(prompt, 6, seed=3, top_p=1e-6, **draw) == greedy


def test_tokens_are_drawn_as_often_as_their_scores_say(gpt2: Any) -> None:
    prompt = [5, 7]
    draws = gpt2.generate([prompt] * 4000, 1, do_sample=True, top_k=8, top_p=0.9, jit=False)
    found = np.bincount([row[-1] for row in draws], minlength=61) / 4000
    scores = gpt2(eg.tensor([prompt]))[0, -1].detach().numpy().astype(np.float64)
    order = np.argsort(-scores)[:8]
    chances = np.exp(scores[order] - scores[order].max())
    chances /= chances.sum()
    kept = np.cumsum(chances) - chances < 0.9
    chances = np.where(kept, chances, 0) / chances[kept].sum()
    assert found[order].sum() == pytest.approx(1)
    np.testing.assert_allclose(found[order], chances, atol=0.04)


BAD = {
    "temperature": ({"temperature": 0.0}, "temperature must be above 0"),
    "top_k": ({"top_k": 0}, "top_k must be an integer above 0"),
    "top_p": ({"top_p": 1.5}, "top_p must be above 0, at most 1"),
    "count": ({"max_new_tokens": 0}, "max_new_tokens must be an integer above 0"),
    "room": ({"max_new_tokens": 63}, "has 64 positions"),
    "prompt": ({"input_ids": [[]]}, "every prompt needs a token"),
    "text": ({"input_ids": ["ab"]}, "lists of token numbers"),
    "axes": ({"input_ids": eg.tensor([1, 2])}, r"\(batch, tokens\)"),
    "dtype": ({"input_ids": eg.ones((1, 2))}, "prompts are integers"),
}


@pytest.mark.parametrize("case", BAD)
def test_generation_refuses_by_name(gpt2: Any, case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(eg.errors.EverygradError, match=message):
        gpt2.generate(**{"input_ids": [[1, 2]], "max_new_tokens": 2, **options})


def test_generation_wants_evaluation_mode(gpt2: Any) -> None:
    gpt2.train()
    try:
        with pytest.raises(eg.errors.ArgumentError, match=r"call model\.eval"):
            gpt2.generate([[1, 2]], 2)
    finally:
        gpt2.eval()


# --- folders that do not fit -----------------------------------------------------------------


def test_everything_that_does_not_fit_is_named(tmp_path: Path) -> None:
    made("gpt2", torch.float32).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = dict(eg.load(file))
    tensors["transformer.ln_f.wieght"] = tensors.pop("transformer.ln_f.weight")
    tensors["transformer.wpe.weight"] = eg.ones((3, 3))
    eg.save(file, tensors)
    with pytest.raises(eg.errors.ShapeError) as caught:
        eg.models.load_hf(tmp_path)
    for part in (
        "missing: ln_f.weight (nearest: ln_f.wieght)",
        "unexpected: ln_f.wieght",
        "wpe.weight has shape (3, 3), not (64, 24)",
    ):
        assert part in str(caught.value)


CONFIGS = {
    "type": ({"model_type": "t5"}, "holds a 't5'; written here are bert, gpt2"),
    "missing": ({"n_embd": None}, "has no 'n_embd'"),
    "size": ({"n_layer": 0}, "n_layer must be an integer above 0"),
    "layers": ({"n_layer": 10**9}, "n_layer must be at most 4096, got 1000000000"),
    "huge": ({"vocab_size": 1 << 50}, "vocab_size must be at most"),
    "heads": ({"n_head": 5}, "n_head 5 must divide n_embd 24"),
    "activation": ({"activation_function": "sine"}, "'sine'; known are gelu"),
    "undone": ({"add_cross_attention": True}, "add_cross_attention=True is not done here"),
    "dropout": ({"attn_pdrop": 1.5}, "attn_pdrop must be a number"),
    "flag": ({"tie_word_embeddings": 1}, "must be true or false"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_configurations_are_checked_by_name(tmp_path: Path, case: str) -> None:
    changes, message = CONFIGS[case]
    made("gpt2", torch.float32).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(eg.errors.ArgumentError, match=message):
        eg.models.load_hf(tmp_path)


def test_a_folder_is_read_without_drawing_weights(tmp_path: Path) -> None:
    made("gpt2", torch.float32).save_pretrained(tmp_path)
    before = eg.default_generator.get_state()
    eg.models.load_hf(tmp_path)
    assert np.array_equal(eg.default_generator.get_state(), before)


def test_other_rope_types_are_refused() -> None:
    rope = {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}
    with pytest.raises(eg.errors.ArgumentError, match="rope_type 'yarn' is not done here"):
        eg.models.Llama({**GQA, **rope})


def test_a_folder_without_weights_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(eg.errors.MissingFileError, match=r"there is config\.json"):
        eg.io.load_safetensors(tmp_path)


# --- tables of names, and files --------------------------------------------------------------


def test_any_module_takes_a_folder_by_a_table(tmp_path: Path) -> None:
    source = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    torch.save(source.state_dict(), tmp_path / "pytorch_model.bin")
    layers = eg.nn.ModuleDict({"a": eg.nn.Linear(3, 4), "b": eg.nn.Linear(4, 2)})
    for rename in ({"0.": "a.", "1.": "b."}, lambda n: n.replace("0.", "a.").replace("1.", "b.")):
        layers.load_hf(tmp_path, rename)
        np.testing.assert_array_equal(
            layers["b"].weight.detach().numpy(), source[1].weight.detach()
        )
    before = layers["a"].weight.detach().numpy().copy()
    with pytest.raises(eg.errors.ArgumentError, match=r"missing: b\.weight"):
        layers.load_hf(tmp_path, {"0.": "a.", "1.": None})
    with pytest.raises(eg.errors.ArgumentError, match="rename calls both"):
        layers.load_hf(tmp_path, {"0.": "a.", "1.": "a."})
    with pytest.raises(eg.errors.ArgumentError, match="maps text to text or None"):
        layers.load_hf(tmp_path, {"0.": 3})
    np.testing.assert_array_equal(layers["a"].weight.detach().numpy(), before)


def test_a_tokenizer_of_a_folder(tmp_path: Path) -> None:
    tokenizers: Any = importlib.import_module("tokenizers")
    words = {"[UNK]": 0, "hello": 1, "world": 2}
    held = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    held.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    held.save(str(tmp_path / "tokenizer.json"))
    assert eg.models.tokenizer(tmp_path).encode("hello there world").ids == [1, 0, 2]
    with pytest.raises(eg.errors.MissingFileError, match="there is no"):
        eg.models.tokenizer(tmp_path / "elsewhere")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(eg.errors.ArgumentError, match=r"tokenizer\.json"):
        eg.models.tokenizer(tmp_path)


def test_every_device_generates_the_same(device: str, gpt2: Any, tmp_path: Path) -> None:
    eg.save(tmp_path / "model.safetensors", gpt2)
    (tmp_path / "config.json").write_text(json.dumps(gpt2.config))
    there = eg.models.load_hf(tmp_path, device=device)
    assert there.generate([[1, 2, 3], [4, 5]], 5) == gpt2.generate([[1, 2, 3], [4, 5]], 5)
