"""What training loops and models need beside layers, in PyTorch's names."""

from everygrad.core.torch_absent import missing
from everygrad.nn.utils import (
    clip_grad as clip_grad,
    convert_parameters as convert_parameters,
    fusion as fusion,
    parametrizations as parametrizations,
    parametrize as parametrize,
    prune as prune,
    rnn as rnn,
    stateless as stateless,
)
from everygrad.nn.utils.clip_grad import (
    clip_grad_norm as clip_grad_norm,
    clip_grad_norm_ as clip_grad_norm_,
    clip_grad_value_ as clip_grad_value_,
    clip_grads_with_norm_ as clip_grads_with_norm_,
    get_total_norm as get_total_norm,
)
from everygrad.nn.utils.convert_parameters import (
    parameters_to_vector as parameters_to_vector,
    vector_to_parameters as vector_to_parameters,
)
from everygrad.nn.utils.fusion import (
    fuse_conv_bn_eval as fuse_conv_bn_eval,
    fuse_conv_bn_weights as fuse_conv_bn_weights,
    fuse_linear_bn_eval as fuse_linear_bn_eval,
    fuse_linear_bn_weights as fuse_linear_bn_weights,
)
from everygrad.nn.utils.memory_format import (
    convert_conv2d_weight_memory_format as convert_conv2d_weight_memory_format,
    convert_conv3d_weight_memory_format as convert_conv3d_weight_memory_format,
)
from everygrad.nn.utils.stateless import skip_init as skip_init
from everygrad.nn.utils.weight_norms import (
    remove_spectral_norm as remove_spectral_norm,
    remove_weight_norm as remove_weight_norm,
    spectral_norm as spectral_norm,
    weight_norm as weight_norm,
)

__getattr__ = missing("everygrad.nn.utils", "torch.nn.utils", lambda: globals())
