"""Files: objects of tensors saved and loaded, checkpoints, functions as web pages, ONNX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from everygrad.core.nearest import no_attribute as _no_attribute
from everygrad.io.checkpoints import Checkpoints as Checkpoints, load_latest as load_latest
from everygrad.io.hugging_face import load_safetensors as load_safetensors
from everygrad.io.loading import load as load
from everygrad.io.saving import save as save
from everygrad.io.web import export_web as export_web

if TYPE_CHECKING:
    from everygrad.interop.onnx.exporting.saving import save_onnx as save_onnx
    from everygrad.interop.onnx.importing import load_onnx as load_onnx

__all__ = [
    *("Checkpoints", "export_web", "load", "load_latest", "load_onnx", "load_safetensors"),
    *("save", "save_onnx"),
]

# What other libraries' files need lies in a part above this one, and loads when it is asked for.
_LATER = {
    "load_onnx": "everygrad.interop.onnx.importing",
    "save_onnx": "everygrad.interop.onnx.exporting.saving",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise _no_attribute("everygrad.io", name, __all__)
    try:
        value = getattr(import_module(_LATER[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("onnx", "google"):
            raise
        raise ModuleNotFoundError(
            f"eg.io.{name} needs the onnx package: pip install 'everygrad[onnx]'", name=error.name
        ) from None
    globals()[name] = value
    return value
