"""Neural networks: modules that hold parameters, in PyTorch's names."""

from everygrad.nn import functional as functional, init as init
from everygrad.nn.activation import (
    GELU as GELU,
    LeakyReLU as LeakyReLU,
    LogSoftmax as LogSoftmax,
    ReLU as ReLU,
    Sigmoid as Sigmoid,
    SiLU as SiLU,
    Softmax as Softmax,
    Softplus as Softplus,
    Tanh as Tanh,
)
from everygrad.nn.attention import MultiheadAttention as MultiheadAttention
from everygrad.nn.containers import (
    ModuleDict as ModuleDict,
    ModuleList as ModuleList,
    Sequential as Sequential,
)
from everygrad.nn.conv import AvgPool2d as AvgPool2d, Conv2d as Conv2d, MaxPool2d as MaxPool2d
from everygrad.nn.dropout import Dropout as Dropout
from everygrad.nn.embedding import Embedding as Embedding
from everygrad.nn.linear import Flatten as Flatten, Identity as Identity, Linear as Linear
from everygrad.nn.loss import CrossEntropyLoss as CrossEntropyLoss, MSELoss as MSELoss
from everygrad.nn.module import Module as Module
from everygrad.nn.norm import BatchNorm2d as BatchNorm2d, LayerNorm as LayerNorm
from everygrad.nn.parameter import Parameter as Parameter
