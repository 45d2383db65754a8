"""`everygrad.data` under PyTorch's name: one module by two names."""

import sys

from everygrad import data
from everygrad.data import *  # noqa: F403  # for editors

sys.modules[__name__] = data
