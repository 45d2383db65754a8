"""Optimisers, in PyTorch's names."""

from everygrad.amp.scaler import GradScaler as GradScaler
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
from everygrad.optim.optimizer import Optimizer as Optimizer
from everygrad.optim.rprop import Rprop as Rprop
from everygrad.optim.schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
from everygrad.optim.sgd import SGD as SGD
