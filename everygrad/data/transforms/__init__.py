"""Transforms of images, made of ops: on one image (channels, height, width) or a batch of them, on
any device, eager or inside `eg.jit`.

Every image of a batch has its own draw. Random transforms take a `generator`; without one they draw
from the default generator, which a DataLoader seeds for each batch. Sizes never depend on what is
drawn, so a compiled step with augmentation is traced once.
"""

from everygrad.core.nearest import answering as _answering
from everygrad.data.transforms.base import (
    Compose as Compose,
    Lambda as Lambda,
    Transform as Transform,
)
from everygrad.data.transforms.colour import (
    ColorJitter as ColorJitter,
    Grayscale as Grayscale,
    Normalize as Normalize,
    RandomErasing as RandomErasing,
    RandomGrayscale as RandomGrayscale,
    ToFloat as ToFloat,
)
from everygrad.data.transforms.geometry import (
    CenterCrop as CenterCrop,
    Pad as Pad,
    RandomCrop as RandomCrop,
    RandomHorizontalFlip as RandomHorizontalFlip,
    RandomResizedCrop as RandomResizedCrop,
    RandomRotation as RandomRotation,
    RandomVerticalFlip as RandomVerticalFlip,
    Resize as Resize,
)
from everygrad.data.transforms.mixing import (
    CutMix as CutMix,
    MixUp as MixUp,
)

__getattr__ = _answering(__name__)
