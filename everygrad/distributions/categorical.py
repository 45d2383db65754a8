"""`Categorical` where `torch.distributions.categorical` has it."""

from everygrad.core.nearest import answering
from everygrad.distributions.choices import Categorical as Categorical

__getattr__ = answering(__name__)
