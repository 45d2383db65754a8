"""What all networks here share: configurations and weights in Hugging Face folders."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from everygrad.errors import ArgumentError, MissingFileError
from everygrad.io.files import as_path, missing
from everygrad.models.config import Settings, read_config
from everygrad.nn import init
from everygrad.nn.module import Module


class Pretrained(Module):
    """A network made from a configuration: a dict as `config.json` of a folder has it.

    Its parts are called as in the published files; `rename` says what else these say. What only
    some files have, and what belongs to training alone, is left out by it too.
    """

    model_types: ClassVar[tuple[str, ...]] = ()
    rename: ClassVar[Mapping[str, str | None]] = {}

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        said = Settings(config, type(self).__name__)("model_type", self.model_types[0])
        if said not in self.model_types:
            raise ArgumentError(
                f"{type(self).__name__}: the configuration is of a {said!r}, not of "
                f"{' or '.join(map(repr, self.model_types))}"
            )
        self.config = dict(config)

    @classmethod
    def from_pretrained(cls, folder: Any, *, dtype: Any = "file", device: str = "cpu") -> Self:
        """The network of a folder with `config.json` and weights, in evaluation mode.

        `dtype` is that of the file unless another is given.
        """
        config = read_config(folder, f"{cls.__name__}.from_pretrained")
        with init.values_to_come():  # a configuration may say anything: no memory is taken for it
            model = cls(config)
        model.load_hf(folder, model.rename, dtype=dtype)
        return model.to(device).eval()


def tokenizer(folder: Any) -> Any:
    """The tokenizer of a folder, by the `tokenizers` package, from its `tokenizer.json`.

    It has `encode(text).ids`, `encode_batch(texts)` and `decode(ids)`.
    """
    if find_spec("tokenizers") is None:
        raise ImportError("tokenizer: needs the tokenizers package: pip install tokenizers")
    from tokenizers import Tokenizer

    where = as_path(folder, "tokenizer")
    path = where if where.name.endswith(".json") else Path(where) / "tokenizer.json"
    if not path.is_file():
        raise MissingFileError(
            f"tokenizer: {missing(path)}; transformers writes one: "
            f"AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises Exception itself
        raise ArgumentError(f"tokenizer: {path}: {error}"[:400]) from None
