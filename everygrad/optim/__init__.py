"""Optimisers, in PyTorch's names."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from everygrad.core.torch_optim_names import missing as _missing
from everygrad.optim import lr_scheduler as lr_scheduler, swa_utils as swa_utils
from everygrad.optim.accumulation import accumulate_gradients as accumulate_gradients
from everygrad.optim.adafactor import Adafactor as Adafactor
from everygrad.optim.adam_variants import Adamax as Adamax, NAdam as NAdam, RAdam as RAdam
from everygrad.optim.adamw import Adam as Adam, AdamW as AdamW
from everygrad.optim.adaptive import Adadelta as Adadelta, Adagrad as Adagrad, RMSprop as RMSprop
from everygrad.optim.asgd import ASGD as ASGD
from everygrad.optim.eight_bit import Adam8bit as Adam8bit, AdamW8bit as AdamW8bit
from everygrad.optim.lamb import LAMB as LAMB
from everygrad.optim.lbfgs import LBFGS as LBFGS
from everygrad.optim.lion import Lion as Lion
from everygrad.optim.muon import Muon as Muon
from everygrad.optim.optimizer import (
    Optimizer as Optimizer,
    swap_in_optimizer_params_and_state as swap_in_optimizer_params_and_state,
)
from everygrad.optim.rprop import Rprop as Rprop
from everygrad.optim.schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
from everygrad.optim.sgd import SGD as SGD

if TYPE_CHECKING:
    from everygrad.amp.scaler import GradScaler as GradScaler

__all__ = [
    "ASGD",
    "LAMB",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "Adam8bit",
    "AdamW",
    "AdamW8bit",
    "Adamax",
    "GradScaler",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "ScheduleFreeAdamW",
    "accumulate_gradients",
    "lr_scheduler",
    "swa_utils",
    "swap_in_optimizer_params_and_state",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python asks for these itself
        raise AttributeError(name)
    if name == "GradScaler":  # it knows optimisers, and is loaded after them
        return _import_module("everygrad.amp.scaler").GradScaler
    raise _missing("optim", name, __all__)
