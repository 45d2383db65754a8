"""Fourier transforms of any length, and their frequencies."""

from types import FunctionType
from typing import Any

from everygrad.core.torch_names import missing
from everygrad.ops.record.arguments import taking
from everygrad.ops.signal.fft import (
    fft as fft,
    fft2 as fft2,
    fftn as fftn,
    hfft as hfft,
    hfft2 as hfft2,
    hfftn as hfftn,
    ifft as ifft,
    ifft2 as ifft2,
    ifftn as ifftn,
    ihfft as ihfft,
    ihfft2 as ihfft2,
    ihfftn as ihfftn,
    irfft as irfft,
    irfft2 as irfft2,
    irfftn as irfftn,
    rfft as rfft,
    rfft2 as rfft2,
    rfftn as rfftn,
)
from everygrad.ops.signal.stft import (
    fftfreq as fftfreq,
    fftshift as fftshift,
    ifftshift as ifftshift,
    rfftfreq as rfftfreq,
)

# the rule of all ops holds here too: arrays are taken, and PyTorch's names of parameters
for _name, _function in [*globals().items()]:
    if (
        isinstance(_function, FunctionType)
        and _function.__module__.startswith("everygrad.ops.signal.")
        and next(iter(_function.__annotations__.values()), "") == "Tensor"
    ):
        globals()[_name] = taking(_function)


def __getattr__(name: str) -> Any:
    raise missing("everygrad.fft", name, globals(), {})
