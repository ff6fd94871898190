"""The specified resize against Pillow's."""

from __future__ import annotations

import numpy as np
import PIL
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastload.transforms import resize as R

FILTERS = {
    R.NEAREST: Image.Resampling.NEAREST,
    R.BILINEAR: Image.Resampling.BILINEAR,
    R.BICUBIC: Image.Resampling.BICUBIC,
    R.LANCZOS: Image.Resampling.LANCZOS,
}


def pillow(pixels, height, width, interpolation):
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    result = np.asarray(image.resize((width, height), FILTERS[interpolation]))
    return result if result.ndim == 3 else result[:, :, None]


def difference(a, b):
    return int(np.abs(a.astype(int) - b.astype(int)).max())


sides = st.integers(1, 90)
# Versions before went horizontally first always, which cubic filters show where they are clipped.
modern_pillow = pytest.mark.skipif(int(PIL.__version__.split(".")[0]) < 13, reason="an older order of passes")


@settings(max_examples=150, deadline=None)
@given(sides, sides, sides, sides, st.sampled_from([1, 3]), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_bilinear_is_within_one_of_pillow(height, width, new_height, new_width, channels, kind, seed):
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (height, width, channels), dtype=np.uint8)
    if kind == 1:
        pixels = np.where(pixels < 128, 0, 255).astype(np.uint8)  # the hardest: black and white
    elif kind == 2:
        pixels = np.sort(pixels, axis=1)
    ours = R.resize(pixels, new_height, new_width, R.BILINEAR)
    assert difference(ours, pillow(pixels, new_height, new_width, R.BILINEAR)) <= 1


@modern_pillow
@settings(max_examples=80, deadline=None)
@given(sides, sides, sides, sides, st.sampled_from([R.BICUBIC, R.LANCZOS]), st.integers(0, 2**32 - 1))
def test_other_filters_are_within_one_of_pillow(height, width, new_height, new_width, interpolation, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    ours = R.resize(pixels, new_height, new_width, interpolation)
    theirs = pillow(pixels, new_height, new_width, interpolation)
    # An ulp in a weight (sines, contraction by Pillow's compiler) can tip a rounding.
    assert difference(ours, theirs) <= 1


def test_nearest():
    # Centres in odd sizes never lie on the border of two pixels, where Pillow leaves it to chance.
    for height, width, new_height, new_width in ((37, 53, 91, 20), (5, 9, 64, 64), (225, 1, 7, 3)):
        pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
        ours = R.resize(pixels, new_height, new_width, R.NEAREST)
        assert np.array_equal(ours, pillow(pixels, new_height, new_width, R.NEAREST))
    assert R.nearest_indices(4, 6).tolist() == [0, 1, 1, 2, 3, 3]


@modern_pillow
def test_wide_arithmetic_is_pillows():
    pixels = np.random.default_rng(2).integers(0, 256, (210, 190, 3), dtype=np.uint8)
    for height, width in ((100, 300), (300, 100), (100, 135), (100, 136), (5, 6)):
        for interpolation in (R.BICUBIC, R.LANCZOS):
            ours = R.resize(pixels, height, width, interpolation)
            assert (ours != pillow(pixels, height, width, interpolation)).mean() < 1e-3


def test_steep_reductions_take_the_wide_arithmetic():
    pixels = np.random.default_rng(0).integers(0, 256, (600, 700, 3), dtype=np.uint8)
    assert difference(R.resize(pixels, 20, 9), pillow(pixels, 20, 9, R.BILINEAR)) == 0


def test_a_worst_case_of_coefficients():
    # Each pixel takes the side on which its weight was rounded worst; at the largest count of fast taps.
    source, target = 1170, 100
    taps = R.taps(source, target, R.BILINEAR, True)
    assert taps.weights.shape[1] == R.FAST_TAPS
    error = R.fast_weights(taps.weights) / 2.0**14 - taps.weights
    line = np.zeros(source, np.uint8)
    for first, row in zip(taps.first, error, strict=True):
        for k, value in enumerate(row):
            if first + k < source and value > 0:
                line[first + k] = 255
    for pixels in (line[:, None, None] & line[None, :, None], line[:, None, None] | line[None, :, None]):
        pixels = np.repeat(pixels, 3, axis=2)
        assert difference(R.resize(pixels, target, target), pillow(pixels, target, target, R.BILINEAR)) <= 1


def test_fast_weights_sum_up():
    for source, target in ((300, 224), (224, 300), (1, 9), (90, 1), (5, 4)):
        weights = R.fast_weights(R.taps(source, target, R.BILINEAR, True).weights)
        assert (weights.sum(axis=1) == 1 << 14).all()
        assert (weights >= 0).all()


def test_flat_images_stay_flat():
    for value in (0, 1, 127, 254, 255):
        pixels = np.full((37, 53, 3), value, np.uint8)
        for interpolation in FILTERS:
            assert (R.resize(pixels, 91, 20, interpolation) == value).all()


def test_without_antialiasing_two_neighbours_are_mixed():
    pixels = np.arange(0, 250, 10, dtype=np.uint8).reshape(1, 25, 1)
    assert R.resize(pixels, 1, 5, R.BILINEAR, False)[0, :, 0].tolist() == [20, 70, 120, 170, 220]


def test_floats_are_resized_in_floats():
    pixels = np.random.default_rng(1).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    ours = R.resize(pixels.astype(np.float32), 20, 30, R.BICUBIC)
    assert ours.dtype == np.float32
    assert np.abs(np.clip(ours, 0, 255) - R.resize(pixels, 20, 30, R.BICUBIC)).max() < 40
    assert np.abs(R.resize(pixels.astype(np.float32), 20, 30) - R.resize(pixels, 20, 30)).max() < 0.6
