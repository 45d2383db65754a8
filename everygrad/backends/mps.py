"""PyTorch's question after Apple's GPUs: here they are reached as "webgpu"."""

from everygrad.core.nearest import answering


def is_available() -> bool:
    """False: there is no device of this name."""
    return False


def is_built() -> bool:
    """False, likewise."""
    return False


__getattr__ = answering(__name__)
