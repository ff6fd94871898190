"""JPEG images in segments give the pixels of their sources; fast decoding stays near the exact pixels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastload import _backend
from fastload import transforms as T
from fastload.errors import UsageError

core = _backend.core()
pytestmark = pytest.mark.skipif(core is None, reason="the compiled core is not in use")

SAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}


def photograph(height, width, seed):
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 25 + 2, width // 25 + 2, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noise = random.normal(0, 3, (height, width, 1))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


def encode(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def native(ops, encoded, position=0, channels=3):
    return core.ImageProgram(T.native_specs(ops), channels, 0).run(encoded, 7, 0, position)


def reference(ops, encoded, position=0, channels=3):
    pixels = T.decode_image(encoded, "RGB" if channels == 3 else "L")
    return T.apply_program(ops, pixels, (7, 0, position, 0))


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 300),
    width=st.integers(1, 400),
    sampling=st.sampled_from([*SAMPLINGS, "gray"]),
    quality=st.integers(30, 97),
    progressive=st.booleans(),
    channels=st.sampled_from([3, 1]),
    crop=st.sampled_from([T.RandomResizedCrop((40, 56)), T.CenterCrop(31)]),
    position=st.integers(0, 1000),
)
def test_segments_change_no_pixel(height, width, sampling, quality, progressive, channels, crop, position):
    image = photograph(height, width, position)
    if sampling == "gray":
        source = encode(image.convert("L"), quality=quality, progressive=progressive)
    else:
        source = encode(image, quality=quality, subsampling=SAMPLINGS[sampling], progressive=progressive)
    result, reason = core.segment_jpeg(source)
    if result is None:
        assert reason == "would become larger"
        return
    assert len(result) <= len(source)
    both = [np.asarray(Image.open(io.BytesIO(data))) for data in (source, result)]
    assert np.array_equal(*both)
    ops = [crop, T.RandomHorizontalFlip()]
    assert np.array_equal(native(ops, result, position, channels), reference(ops, source, position, channels))


def errors(ops, encoded, position=0):
    exact = native([T.Decode(), *ops], encoded, position).astype(int)
    fast = native([T.Decode("fast"), *ops], encoded, position).astype(int)
    assert fast.shape == exact.shape
    return np.abs(fast - exact)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("op", "mean", "mean_422", "largest"),
    [  # strong colours and noise, three times as far off as in photographs
        (T.RandomResizedCrop(200), 0.4, 0.4, 5),
        (T.RandomResizedCrop(48), 1.3, 2.0, 16),
        (T.RandomResizedCrop(12), 2.5, 5.5, 32),
        (T.Resize(100), 0.7, 0.7, 6),
        (T.Resize(31, interpolation="bicubic"), 2.0, 2.0, 16),
        (T.Resize((50, 40), interpolation="lanczos"), 0.7, 1.8, 16),
    ],
)
def test_fast_is_near_exact(op, mean, mean_422, largest, sampling):
    for position in range(6):
        source = encode(photograph(375, 500, position), quality=90, subsampling=SAMPLINGS[sampling])
        error = errors([op], source, position)
        assert error.mean() < (mean_422 if sampling == "4:2:2" else mean)
        assert error.max() <= largest


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", [(200, 190), (120, 300), (400, 260)])
def test_only_roundings_differ(sampling, size):
    """The bound that docs/images.md derives: no division here, and no colour that is clipped."""
    random = np.random.default_rng(3)
    noise = random.integers(96, 160, (375, 500, 3), dtype=np.uint8)
    for picture in (Image.fromarray(noise), photograph(375, 500, 1).point(lambda v: 88 + v // 4)):
        source = encode(picture, quality=92, subsampling=SAMPLINGS[sampling])
        pixels = np.asarray(Image.open(io.BytesIO(source)))
        assert pixels.min() > 0
        assert pixels.max() < 255
        for position in range(8):
            assert errors([T.RandomResizedCrop(size)], source, position).max() <= 3


@pytest.mark.parametrize(
    "ops",
    [
        [T.CenterCrop(100)],
        [T.Resize(20, interpolation="nearest")],
        [T.Resize(20, antialias=False)],
        [T.CenterCrop(300), T.Resize(30)],
        [T.RandomHorizontalFlip(1.0), T.Resize(20)],
        [],
    ],
)
def test_fast_keeps_geometry(ops):
    data = encode(photograph(333, 471, 3), quality=95, subsampling=0)
    divided = T.CenterCrop(300) in ops
    assert errors(ops, data).mean() < (2.2 if divided else 0.4)


def test_fast_does_not_depend_on_segments():
    for position in range(8):
        source = encode(photograph(375, 500, position), quality=92)
        result, _ = core.segment_jpeg(source)
        for size in (224, 60, 20):
            ops = [T.Decode("fast"), T.RandomResizedCrop(size)]
            assert np.array_equal(native(ops, source, position), native(ops, result, position))


def test_the_reference_decodes_exactly():
    pixels = np.asarray(photograph(60, 80, 1))
    ops = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    fast, exact = [T.Decode("fast"), *ops], [T.Decode(), *ops]
    made = [T.apply_program(program, pixels, (7, 0, 5, 0)) for program in (fast, exact)]
    assert np.array_equal(*made)
    assert T.output_spec(fast) == T.output_spec(ops)
    data = encode(Image.fromarray(pixels))
    assert np.array_equal(native(exact, data, 5), reference(exact, data, 5))  # the same draws


def test_decode_comes_first():
    with pytest.raises(UsageError, match="how the image is decoded"):
        T.output_spec([T.CenterCrop(3), T.Decode("fast")])
    with pytest.raises(UsageError, match="unknown decoding"):
        T.Decode("quick")
    for specs in ([("decode", [2.0])], [("decode", [])], [("center_crop", [3.0, 3.0]), ("decode", [1.0])]):
        with pytest.raises(UsageError):
            core.ImageProgram(specs, 3, 0)
