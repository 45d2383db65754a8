"""Networks written once, made from Hugging Face folders: `eg.models.load_hf(folder)`."""

from typing import Any

from everygrad.core.nearest import no_attribute
from everygrad.errors import ArgumentError
from everygrad.models.bert import Bert as Bert, BertOutput as BertOutput
from everygrad.models.config import read_config
from everygrad.models.gpt2 import GPT2 as GPT2
from everygrad.models.kv_cache import KVCache as KVCache
from everygrad.models.llama import Llama as Llama
from everygrad.models.pretrained import Pretrained as Pretrained, tokenizer as tokenizer
from everygrad.models.vit import ViT as ViT, ViTOutput as ViTOutput

__all__ = [
    *("Bert", "BertOutput", "GPT2", "KVCache", "Llama", "Pretrained", "ViT", "ViTOutput"),
    *("load_hf", "tokenizer"),
]

_BY_TYPE: dict[str, type[Pretrained]] = {
    kind: model for model in (Bert, GPT2, Llama, ViT) for kind in model.model_types
}


def load_hf(folder: Any, *, dtype: Any = "file", device: str = "cpu") -> Any:
    """The network of a Hugging Face folder, chosen by what its `config.json` says it is.

    `dtype` is that of the file unless another is given; the network is in evaluation mode.

    >>> import everygrad as eg, json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> config = {"model_type": "gpt2", "vocab_size": 9, "n_embd": 4, "n_layer": 1, "n_head": 2}
    >>> _ = (folder / "config.json").write_text(json.dumps(config))
    >>> eg.save(folder / "model.safetensors", eg.models.GPT2(config))
    >>> eg.models.load_hf(folder)(eg.tensor([[1, 2]])).shape
    (1, 2, 9)
    """
    kind = read_config(folder, "load_hf").get("model_type")
    if kind not in _BY_TYPE:
        raise ArgumentError(
            f"load_hf: {folder} holds a {kind!r}; written here are {', '.join(_BY_TYPE)}. "
            f"eg.from_torch takes any PyTorch module"
        )
    return _BY_TYPE[kind].from_pretrained(folder, dtype=dtype, device=device)


def __getattr__(name: str) -> Any:
    raise no_attribute("everygrad.models", name, __all__)
