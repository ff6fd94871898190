"""The operations: their arguments, sizes, draws and pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fastload import transforms as T
from fastload.errors import DecodeError, UsageError
from fastload.transforms.operations import affine, exponential
from fastload.transforms.program import bfloat16_bits

NO_DRAWS = T.Draws(0, 0, 0)


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (31, 47, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("operation", "size", "expected"),
    [
        (T.Resize(50), (100, 200), (50, 100)),
        (T.Resize(50), (200, 101), (99, 50)),
        (T.Resize([50]), (200, 101), (99, 50)),
        (T.Resize((7, 9)), (200, 101), (7, 9)),
        (T.Resize(50, max_size=60), (100, 200), (30, 60)),
        (T.Resize(None, max_size=60), (100, 200), (30, 60)),
        (T.Resize(None, max_size=6), (1, 200), (1, 6)),
        (T.CenterCrop(5), (1, 1), (5, 5)),
        (T.CenterCrop((5, 6)), (100, 100), (5, 6)),
        (T.RandomResizedCrop((5, 6)), (100, 100), (5, 6)),
        (T.RandomHorizontalFlip(), (3, 4), (3, 4)),
    ],
)
def test_sizes(operation, size, expected):
    assert operation.output_size(*size, NO_DRAWS) == expected
    result = operation.apply(np.zeros((*size, 3), np.uint8), NO_DRAWS)
    assert result.shape == (*expected, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.Resize(0),
        lambda: T.Resize(None),
        lambda: T.Resize("256"),
        lambda: T.Resize((1, 2, 3)),
        lambda: T.Resize(True),
        lambda: T.Resize((2, 3), max_size=4),
        lambda: T.Resize(5, max_size=5),
        lambda: T.Resize(5, "box"),
        lambda: T.Resize(5, "bicubic", antialias=False),
        lambda: T.CenterCrop(-1),
        lambda: T.RandomResizedCrop(5, scale=(0.5, 0.1)),
        lambda: T.RandomResizedCrop(5, scale=(0.0, 0.1)),
        lambda: T.RandomResizedCrop(5, ratio=3),
        lambda: T.RandomHorizontalFlip(1.5),
        lambda: T.ToDtype("int64"),
        lambda: T.Normalize([0.5], [0.5, 0.5]),
        lambda: T.Normalize([0.5], [0.0]),
        lambda: T.Normalize([math.nan], [1.0]),
        lambda: T.Normalize([], []),
        lambda: T.Layout("HWCN"),
        lambda: T.Call(3),
    ],
)
def test_bad_arguments_are_usage_errors(make):
    with pytest.raises(UsageError):
        make()


def test_a_narrow_image_does_not_take_gigabytes():
    with pytest.raises(DecodeError, match="more than"):
        T.Resize(1000).apply(np.zeros((1, 60_000, 1), np.uint8), NO_DRAWS)


def test_interpolations_by_pillow_numbers_and_names():
    assert T.Resize(5, 2).interpolation == "bilinear"
    assert T.Resize(5, 1).interpolation == "lanczos"
    assert T.Resize(5, "nearest-exact").interpolation == "nearest"


def test_center_crop_pads_with_zeros(pixels):
    result = T.CenterCrop((40, 20)).apply(pixels, NO_DRAWS)
    assert (result[:4] == 0).all()
    assert (result[35:] == 0).all()
    assert np.array_equal(result[4:35], pixels[:, 14:34])  # (47 - 20) / 2 is halfway: to the even 14


def test_flip(pixels):
    flips = [T.RandomHorizontalFlip(0.3).apply(pixels, T.Draws(0, 0, i)) for i in range(600)]
    mirrored = sum(np.array_equal(flip, pixels[:, ::-1]) for flip in flips)
    assert 130 < mirrored < 230
    assert np.array_equal(T.RandomHorizontalFlip(0.0).apply(pixels, NO_DRAWS), pixels)
    assert np.array_equal(T.RandomHorizontalFlip(1.0).apply(pixels, NO_DRAWS), pixels[:, ::-1])


def test_crops_are_drawn_as_specified():
    operation = T.RandomResizedCrop(8, scale=(0.2, 0.6), ratio=(0.5, 2.0))
    areas, ratios, tops = [], [], []
    for position in range(3000):
        top, left, height, width = operation.crop_box(400, 600, T.Draws(1, 0, position))
        assert 0 <= top <= 400 - height
        assert 0 <= left <= 600 - width
        areas.append(height * width / 240_000)
        ratios.append(math.log(width / height))
        tops.append(top / max(400 - height, 1))
    assert min(areas) > 0.19
    assert max(areas) < 0.61
    assert abs(np.mean(areas) - 0.4) < 0.02
    assert min(ratios) > -0.72
    assert max(ratios) < 0.72
    assert abs(np.mean(tops) - 0.5) < 0.02


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((10, 1000), (0, 493, 10, 13)),  # too wide: the widest ratio in the middle
        ((1000, 10), (493, 0, 13, 10)),
        ((1, 1), (0, 0, 1, 1)),
    ],
)
def test_crops_that_cannot_be_drawn_are_central(size, box):
    operation = T.RandomResizedCrop(8, scale=(0.9, 1.0))
    assert operation.crop_box(*size, NO_DRAWS) == box


def test_exponential():
    for x in np.linspace(-20, 20, 401):
        assert exponential(float(x)) == pytest.approx(math.exp(x), rel=1e-13)


def test_normalise_is_one_multiplication_and_addition(pixels):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    ops = [T.ToDtype("float32", scale=True), T.Normalize(mean, std), T.Layout("NHWC")]
    a = np.array([1 / 255 / s for s in std]).astype(np.float32)
    b = np.array([-m / s for m, s in zip(mean, std, strict=True)]).astype(np.float32)
    result = T.apply_program(ops, pixels, T.SampleKey())
    assert np.array_equal(result, pixels.astype(np.float32) * a + b)
    exact = (pixels / 255.0 - mean) / std
    assert np.abs(result - exact).max() < 1e-6


def test_normalise_out_of_range_is_refused():
    with pytest.raises(UsageError, match="float32"):
        affine([T.ToDtype("float32"), T.Normalize([0.0], [1e-300])], 3)


def test_conversions_without_normalise(pixels):
    scaled = T.apply_program([T.ToDtype("float32", scale=True)], pixels, T.SampleKey())
    assert np.array_equal(scaled, (pixels * np.float32(1 / 255)).transpose(2, 0, 1))
    plain = T.apply_program([T.ToDtype("float16")], pixels, T.SampleKey())
    assert plain.dtype == np.float16
    assert np.array_equal(plain, pixels.transpose(2, 0, 1))
    back = T.apply_program(
        [T.ToDtype("float32", scale=True), T.ToDtype("uint8", scale=True)], pixels, T.SampleKey()
    )
    assert np.array_equal(back, pixels.transpose(2, 0, 1))


def test_bfloat16_rounds_half_to_even():
    values = np.array([1.0, 1.00390625, 1.01171875, -1.00390625, np.inf, np.nan], np.float32)
    assert bfloat16_bits(values).tolist()[:5] == [0x3F80, 0x3F80, 0x3F82, 0xBF80, 0x7F80]
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    theirs = torch.from_numpy(random).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(bfloat16_bits(random), theirs)


def test_layouts(pixels):
    for layout in ("channels_last", "NHWC"):
        assert np.array_equal(T.apply_program([T.Layout(layout)], pixels, T.SampleKey()), pixels)
    chw = T.apply_program([], pixels, T.SampleKey())
    assert chw.flags.c_contiguous
    assert np.array_equal(chw, pixels.transpose(2, 0, 1))


def test_geometry_after_conversion_runs_in_python(pixels):
    ops = [T.ToDtype("float32", scale=True), T.Resize(16), T.CenterCrop(16)]
    assert T.native_specs(ops) is None
    result = T.apply_program(ops, pixels, T.SampleKey())
    assert result.dtype == np.float32
    expected = T.apply_program(ops[1:], pixels, T.SampleKey()) / 255.0
    assert np.abs(result - expected).max() < 1 / 255


def test_order_is_checked(pixels):
    for ops in ([T.Normalize([0.5], [0.5])], [T.ToDtype("uint8"), T.Normalize([0.5], [0.5])]):
        with pytest.raises(UsageError, match="float"):
            T.output_spec(ops)
        with pytest.raises(UsageError, match="float"):
            T.apply_program(ops, pixels, T.SampleKey())
    with pytest.raises(UsageError, match="means"):
        T.output_spec([T.ToDtype("float32"), T.Normalize([0.5] * 3, [0.5] * 3)], channels=1)


def test_output_spec():
    assert T.output_spec([]) == ("uint8", "NCHW", None)
    assert T.output_spec([T.Resize(256)]).fixed_size is None
    assert T.output_spec([T.Resize(5000)]).fixed_size is None
    assert T.output_spec([T.Resize(256), T.CenterCrop(224)]).fixed_size == (224, 224)
    assert T.output_spec([T.Resize((8, 9)), T.Resize(16)]).fixed_size == (16, 18)
    assert T.output_spec([T.Call(lambda x: x)]) == (None, "NCHW", None)
    assert T.output_spec([T.CenterCrop(3), T.Call(lambda x: x), T.ToDtype("float16")]) == (
        "float16",
        "NCHW",
        None,
    )


def test_the_key_decides(pixels):
    ops = [T.RandomResizedCrop(8), T.RandomHorizontalFlip()]
    one = T.apply_program(ops, pixels, (1, 2, 3, 4))
    assert np.array_equal(one, T.apply_program(ops, pixels, T.SampleKey(1, 2, 3, 4)))
    for other in ((0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)):
        assert not np.array_equal(one, T.apply_program(ops, pixels, other))
