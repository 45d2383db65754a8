"""What training loops and models need beside layers, in PyTorch's names."""

from everygrad.nn.utils import rnn as rnn
from everygrad.nn.utils.clip_grad import (
    clip_grad_norm_ as clip_grad_norm_,
    clip_grad_value_ as clip_grad_value_,
)
