"""Where PyTorch's programs look for modules on several devices: everygrad.distributed has them."""

from typing import Any

from everygrad.core.nearest import no_attribute

_MODULE = "eg.distributed.DataParallel(module, mesh), a process for each device"
_CURES = {"DataParallel": _MODULE, "DistributedDataParallel": _MODULE, "data_parallel": _MODULE}


def __getattr__(name: str) -> Any:
    cure = f"; use {_CURES[name]}" if name in _CURES else ""
    raise no_attribute("everygrad.nn.parallel", name, _CURES, cure)
