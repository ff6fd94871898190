"""torchvision transforms: converted by name, kept as calls where there is no equal."""

from __future__ import annotations

import types

import numpy as np
import pytest

from fastload import transforms as T
from fastload.errors import UsageError
from fastload.transforms.call import Call


def fake(name, module="torchvision.transforms.v2._geometry", **attributes):
    """Return an object like one of torchvision's, which need not be installed."""
    kind = type(name, (), {"__module__": module, "__call__": lambda self, image: image})
    instance = kind()
    vars(instance).update(attributes)
    return instance


BILINEAR = types.SimpleNamespace(value="bilinear")
CROP = {"size": (224, 224), "scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3), "interpolation": BILINEAR}


def test_conversion_by_name():
    compose = fake(
        "Compose",
        module="torchvision.transforms.v2._container",
        transforms=[
            fake("ToImage"),
            fake("RandomResizedCrop", **CROP, antialias=True),
            fake("RandomHorizontalFlip", p=0.25),
            fake("Compose", transforms=[fake("ToDtype", dtype="torch.float16", scale=True)]),
            fake("Normalize", mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.1]),
        ],
    )
    assert T.from_torchvision(compose) == (
        T.RandomResizedCrop(224),
        T.RandomHorizontalFlip(0.25),
        T.ToDtype("float16", scale=True),
        T.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.1)),
    )


def test_sizes_and_deprecated_forms():
    resize = fake("Resize", size=[256], interpolation=BILINEAR, max_size=None, antialias=None)
    old = fake("ToTensor", module="torchvision.transforms.transforms")
    assert T.from_torchvision([resize, fake("CenterCrop", size=[224, 224]), old]) == (
        T.Resize(256),
        T.CenterCrop(224),
        T.ToDtype("float32", scale=True),
    )


def test_what_has_no_equal_is_called():
    jitter = fake("ColorJitter", module="torchvision.transforms.v2._color")
    box = fake(
        "Resize", size=[9], interpolation=types.SimpleNamespace(value="box"), max_size=None, antialias=True
    )
    stranger = fake("Resize", module="elsewhere")
    operations = T.from_torchvision([jitter, box, stranger, np.asarray, T.CenterCrop(3)])
    assert [type(operation) for operation in operations] == [Call] * 4 + [T.CenterCrop]
    assert operations[0].function is jitter
    assert T.from_torchvision(np.asarray) == (Call(np.asarray),)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(UsageError):
        T.from_torchvision(7)
    with pytest.raises(UsageError):
        T.from_torchvision(["RandomCrop"])


def test_with_torchvision_itself():
    v2 = pytest.importorskip("torchvision.transforms.v2")
    torch = pytest.importorskip("torch")
    compose = v2.Compose(
        [
            v2.ToImage(),
            v2.Resize(40),
            v2.CenterCrop(32),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    operations = T.from_torchvision(compose)
    assert not any(isinstance(operation, Call) for operation in operations)
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    theirs = compose(torch.from_numpy(pixels.transpose(2, 0, 1).copy())).numpy()
    ours = T.apply_program(operations, pixels, T.SampleKey())
    assert np.abs(ours - theirs).max() <= 1.01 / 255 / 0.224
