"""User callables as operations."""

from __future__ import annotations

import random

import numpy as np
import pytest
from PIL import Image

from fastload import transforms as T
from fastload.errors import UsageError

torch = pytest.importorskip("torch")


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)


def test_gets_and_returns_chw_tensors(pixels):
    seen = []

    def invert(image):
        seen.append((tuple(image.shape), image.dtype))
        return 255 - image

    result = T.apply_program([T.Call(invert)], pixels, T.SampleKey())
    assert seen == [((3, 9, 7), torch.uint8)]
    assert np.array_equal(result, 255 - pixels.transpose(2, 0, 1))


def test_may_return_arrays_and_pictures(pixels):
    def to_array(image):
        return image.permute(1, 2, 0).numpy()

    def to_picture(image):
        return Image.fromarray(image.permute(1, 2, 0).numpy())

    for function in (to_array, to_picture):
        result = T.apply_program([T.Call(function), T.CenterCrop(5)], pixels, T.SampleKey())
        assert np.array_equal(result, T.apply_program([T.CenterCrop(5)], pixels, T.SampleKey()))
    with pytest.raises(UsageError, match="str"):
        T.apply_program([T.Call(lambda image: "no")], pixels, T.SampleKey())


def test_may_change_type_and_shape(pixels):
    mean = T.apply_program([T.Call(lambda image: image.float().mean(dim=(1, 2)))], pixels, T.SampleKey())
    assert mean.shape == (3,)
    half = T.apply_program([T.Call(lambda image: image.bfloat16())], pixels, T.SampleKey())
    assert half.dtype == np.float32
    after = T.apply_program(
        [T.Call(lambda image: image / 255), T.Normalize([0.5], [0.5])], pixels, T.SampleKey()
    )
    assert np.abs(after - (pixels.transpose(2, 0, 1) / 255.0 - 0.5) / 0.5).max() < 1e-6


def test_random_numbers_come_from_the_key(pixels):
    def draw(image):
        return torch.cat([torch.rand(1), torch.tensor([random.random(), np.random.rand()])])

    def run(position):
        return T.apply_program([T.Call(draw)], pixels, T.SampleKey(0, 0, position)).tolist()

    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    state = (torch.get_rng_state().tolist(), random.getstate())
    assert run(1) == run(1)
    assert run(1) != run(2)
    assert (torch.get_rng_state().tolist(), random.getstate()) == state


def test_runs_in_python_only():
    assert T.native_specs([T.Call(lambda image: image)]) is None
