"""What happens to a record: declarative operations, each with a reference in NumPy and Pillow.

>>> from fastload import transforms as T
>>> T.output_spec([T.RandomResizedCrop(224), T.ToDtype("float16", scale=True)])
OutputSpec(dtype='float16', layout='NCHW', fixed_size=(224, 224))
"""

from __future__ import annotations

from fastload.transforms.call import Call
from fastload.transforms.colours import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from fastload.transforms.decode import decode_image, image_size
from fastload.transforms.erasing import RandomErasing
from fastload.transforms.joint import MovedBoxes, MovedMask, check_joint, mask_error, mask_operations
from fastload.transforms.mix import CutMix, MixUp
from fastload.transforms.operations import (
    CenterCrop,
    Decode,
    Layout,
    Normalize,
    Operation,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
)
from fastload.transforms.padding import Pad, RandomCrop
from fastload.transforms.policies import AUGMENTATIONS, RandAugment, TrivialAugmentWide
from fastload.transforms.program import OutputSpec, apply_program, native_specs, output_channels, output_spec
from fastload.transforms.random import (
    BATCH_GROUP,
    DRAWS_VERSION,
    LAST_GROUP,
    MAP_GROUP,
    SUBSTITUTE_GROUP,
    Draws,
    SampleKey,
)
from fastload.transforms.torchvision import from_torchvision
from fastload.transforms.views import MultiView

__all__ = [
    "ColorJitter",
    "GaussianBlur",
    "Grayscale",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
    "RandomErasing",
    "RandomVerticalFlip",
    "Pad",
    "RandomCrop",
    "AUGMENTATIONS",
    "RandAugment",
    "TrivialAugmentWide",
    "output_channels",
    "BATCH_GROUP",
    "DRAWS_VERSION",
    "LAST_GROUP",
    "MAP_GROUP",
    "SUBSTITUTE_GROUP",
    "Call",
    "CenterCrop",
    "CutMix",
    "Decode",
    "Draws",
    "Layout",
    "MixUp",
    "MovedBoxes",
    "MovedMask",
    "MultiView",
    "Normalize",
    "Operation",
    "OutputSpec",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "SampleKey",
    "ToDtype",
    "apply_program",
    "check_joint",
    "decode_image",
    "from_torchvision",
    "image_size",
    "mask_error",
    "mask_operations",
    "native_specs",
    "output_spec",
]
