"""What is said of a kernel that a renderer or a driver rejects: its name, its text in the kernel
language, and what to do about it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from everygrad.codegen import show
from everygrad.codegen.kernel import Kernel
from everygrad.errors import CompileError, DtypeError

_MOST = 1 << 8  # of the latest: a driver is given a kernel soon after it is rendered
_kernels: OrderedDict[str, Kernel] = OrderedDict()  # by what a driver is given


def rendered_as(text: str, kernel: Kernel) -> None:
    """Remember of which kernel a driver is given this text, or a function of this name."""
    _kernels[text] = kernel
    while len(_kernels) > _MOST:
        _kernels.popitem(last=False)


def origin(text: str) -> str:
    """What a driver's error ends with; nothing for kernels that are not of the kernel language."""
    kernel = _kernels.get(text)
    return "" if kernel is None else f"\n{_to_report(kernel)}"


def _to_report(kernel: Kernel) -> str:
    return (
        f"kernel {kernel.name}: this is a fault of everygrad or of the driver, please report it "
        f"with this text:\n{show.kernel(kernel)}"
    )


@contextmanager
def rendering(device: str, kernel: Kernel) -> Iterator[None]:
    """Around the rendering of expressions, whose intrinsics a device may lack."""
    try:
        yield
    except (KeyError, DtypeError) as error:
        lacks = f"there is no {error.args[0]}" if isinstance(error, KeyError) else str(error)
        raise CompileError(
            f"{device}: {kernel.name} needs an intrinsic that cannot be written for this device "
            f"({lacks}); a line in its table of intrinsics adds it\n{_to_report(kernel)}"
        ) from None
