"""Architectures for text, from transformers."""

from __future__ import annotations

from typing import Any

import torch

from devtools.zoo import torchvision_schemas
from devtools.zoo.cases import Case, quiet, tokens

torchvision_schemas.define()
import transformers as hf  # noqa: E402  # imports torchvision, where it is installed

_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "initializer_range": 0.2, **_ENDS}


def _encoder(name: str, model: str, config: str, sizes: dict[str, Any]) -> Case:
    def build() -> Any:
        return getattr(hf, model)(quiet(getattr(hf, config)(**sizes)))

    def inputs() -> dict[str, torch.Tensor]:
        mask = torch.ones(2, 8, dtype=torch.int64)
        mask[1, 5:] = 0
        return {"input_ids": tokens(), "attention_mask": mask}

    return Case(name, "transformers", build, inputs, ("logits",))


def _decoder(
    name: str, model: str, config: str, sizes: dict[str, Any], still: tuple[str, ...] = ()
) -> Case:
    def build() -> Any:
        return getattr(hf, model)(quiet(getattr(hf, config)(**sizes)))

    return Case(name, "transformers", build, lambda: {"input_ids": tokens()}, ("logits",), still)


def _both(
    name: str, model: str, config: str, sizes: dict[str, Any], still: tuple[str, ...] = ()
) -> Case:
    def build() -> Any:
        return getattr(hf, model)(quiet(getattr(hf, config)(**sizes)))

    def inputs() -> dict[str, torch.Tensor]:
        return {"input_ids": tokens(), "decoder_input_ids": tokens(length=6)}

    return Case(name, "transformers", build, inputs, ("logits",), still)


def _mixtral() -> Any:
    config = hf.MixtralConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2)
    config._experts_implementation = "batched_mm"  # the others' sizes depend on values
    return hf.MixtralForCausalLM(quiet(config))


CASES = [
    _encoder("BERT", "BertForMaskedLM", "BertConfig", _SIZES),
    _encoder(
        *("DistilBERT", "DistilBertForMaskedLM", "DistilBertConfig"),
        {
            **{"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
            "max_position_embeddings": 32,
        },
    ),
    _encoder(
        "RoBERTa", "RobertaForMaskedLM", "RobertaConfig", {**_SIZES, "type_vocab_size": 1, **_ENDS}
    ),
    _encoder("ALBERT", "AlbertForMaskedLM", "AlbertConfig", {**_SIZES, "embedding_size": 16}),
    _decoder(
        *("GPT-2", "GPT2LMHeadModel", "GPT2Config"),
        {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, **_ENDS},
    ),
    _decoder("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", {**_SIZES, **_ENDS}),
    _decoder(
        *("OPT", "OPTForCausalLM", "OPTConfig"),
        {
            **{"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 48},
            **{"num_attention_heads": 4, "max_position_embeddings": 32, "word_embed_proj_dim": 32},
            **_ENDS,
        },
        ("OPTDecoder",),
    ),
    _decoder("Llama", "LlamaForCausalLM", "LlamaConfig", _GROUPED),
    _decoder("Mistral", "MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": 4}),
    Case("Mixtral", "transformers", _mixtral, lambda: {"input_ids": tokens()}, ("logits",)),
    _decoder("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    _decoder("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 8}),
    _decoder("Gemma", "GemmaForCausalLM", "GemmaConfig", {**_GROUPED, "head_dim": 8}),
    _decoder(
        *("Gemma2", "Gemma2ForCausalLM", "Gemma2Config"),
        {**_GROUPED, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
    ),
    _decoder(
        *("Gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig"),
        {**_GROUPED, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
    ),
    _decoder("Phi", "PhiForCausalLM", "PhiConfig", _GROUPED),
    _both(
        *("T5", "T5ForConditionalGeneration", "T5Config"),
        {
            **{"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2},
            **{"num_heads": 4, "decoder_start_token_id": 0},
        },
    ),
    _both(
        *("BART", "BartForConditionalGeneration", "BartConfig"),
        {
            **{"vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
            **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32},
            **_ENDS,
        },
        ("BartEncoder", "BartDecoder"),
    ),
    _decoder(
        *("Mamba", "MambaForCausalLM", "MambaConfig"),
        {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, **_ENDS},
    ),
]
