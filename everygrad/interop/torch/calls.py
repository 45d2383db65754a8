"""What users call: PyTorch, and all that needs it, is imported at the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everygrad.interop.torch.module import TorchModule


def _part(name: str, caller: str) -> Any:
    try:
        return import_module(f"everygrad.interop.torch.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"{caller} needs PyTorch: pip install torch", name="torch"
        ) from None


def from_torch(
    model: Any,
    example_inputs: Any = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: bool = True,
    copy: bool = False,
) -> TorchModule:
    """A PyTorch module, or an ExportedProgram, as a Module: to run, train, differentiate and ship.

    `example_inputs` are a tuple of positional arguments (a tensor alone stands for one), as
    PyTorch's or this library's tensors; without any, it is exported at its first call. It has
    PyTorch's names and shares its weights, which PyTorch must not write to then (`copy` copies
    them). It is exported in the modes its parts are in, again after `train()` or `eval()`, and,
    where `dynamic`, for every set of input shapes it is called with. An ExportedProgram keeps its
    mode, and the sizes that it says.

    >>> import everygrad as eg, torch
    >>> model = eg.from_torch(torch.nn.Linear(3, 2), torch.zeros(1, 3))
    >>> model(eg.ones((4, 3))).shape, [name for name, p in model.named_parameters()]
    ((4, 2), ['weight', 'bias'])
    """
    made: TorchModule = _part("module", "from_torch").made_from(
        model, example_inputs, example_kwargs, dynamic=dynamic, copy=copy
    )
    return made


def to_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors here as a function of PyTorch's tensors, part of their graph.

    Tensors among its arguments, in containers too, are read where they lie; everything else is
    handed over as it is. Results are on memory of their own. PyTorch differentiates it by the
    derivatives that we have, also twice (`create_graph=True`) and more often.

    >>> import everygrad as eg, torch
    >>> f = eg.to_torch(lambda x: (x * x).sum())
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> torch.autograd.grad(f(x), x)
    (tensor([2., 4.]),)
    """
    made: Callable[..., Any] = _part("function", "to_torch").as_torch_function(function)
    return made
