"""Optimisers, in PyTorch's names."""

from everygrad.amp.scaler import GradScaler as GradScaler
from everygrad.optim.adamw import Adam as Adam, AdamW as AdamW
from everygrad.optim.optimizer import Optimizer as Optimizer
from everygrad.optim.sgd import SGD as SGD
