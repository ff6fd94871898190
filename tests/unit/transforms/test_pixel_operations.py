"""Padding, colours, filters, erasing and policies: their arguments, draws and pixels."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest

from fastload import transforms as T
from fastload.errors import DecodeError, UsageError
from fastload.transforms import arithmetic
from fastload.transforms.call import Call
from fastload.transforms.erasing import byte_values, normal_values
from fastload.transforms.policies import Space, augment, spaced
from fastload.transforms.random import philox4x32

NO_DRAWS = T.Draws(0, 0, 0)


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (31, 47, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.Pad(-1),
        lambda: T.Pad((1, 2, 3)),
        lambda: T.Pad(1.5),
        lambda: T.Pad(1, fill="red"),
        lambda: T.Pad(1, fill=(1, 2)),
        lambda: T.Pad(1, padding_mode="wrap"),
        lambda: T.RandomCrop(0),
        lambda: T.RandomCrop(5, padding=-1),
        lambda: T.RandomVerticalFlip(-0.1),
        lambda: T.RandomVerticalFlip("often"),
        lambda: T.Grayscale(2),
        lambda: T.RandomSolarize(256),
        lambda: T.RandomPosterize(9),
        lambda: T.RandomPosterize(True),
        lambda: T.RandomAdjustSharpness(-1),
        lambda: T.RandomInvert(2),
        lambda: T.ColorJitter(brightness=-1),
        lambda: T.ColorJitter(contrast=(2, 1)),
        lambda: T.ColorJitter(saturation=(-1, 1)),
        lambda: T.ColorJitter(hue=0.6),
        lambda: T.ColorJitter(hue=(0, math.nan)),
        lambda: T.GaussianBlur(4),
        lambda: T.GaussianBlur(257),
        lambda: T.GaussianBlur((3, 3, 3)),
        lambda: T.GaussianBlur(3, 0),
        lambda: T.RandomErasing(scale=(0.1, 1.1)),
        lambda: T.RandomErasing(ratio=(0, 1)),
        lambda: T.RandomErasing(value="noise"),
        lambda: T.RandomErasing(value=1e300),
        lambda: T.RandAugment(-1),
        lambda: T.RandAugment(magnitude=31),
        lambda: T.RandAugment(interpolation="bilinear"),
        lambda: T.TrivialAugmentWide(1),
        lambda: T.TrivialAugmentWide(fill="black"),
    ],
)
def test_bad_arguments_are_usage_errors(make):
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padding(pixels, mode):
    result = T.Pad((1, 2, 3, 4), padding_mode=mode).apply(pixels, NO_DRAWS)
    assert np.array_equal(result, np.pad(pixels, ((2, 4), (1, 3), (0, 0)), mode=mode))
    assert (T.Pad(1, padding_mode=mode).native_spec() is None) == (mode != "constant")


def test_padding_fills_channels(pixels):
    result = T.Pad(1, fill=(1, 300, -3)).apply(pixels, NO_DRAWS)
    assert result[0, 0].tolist() == [1, 255, 0]
    with pytest.raises(UsageError, match="3 channels, the images have 1"):
        T.Pad(1, fill=(1, 2, 3)).apply(pixels[:, :, :1], NO_DRAWS)
    floats = T.Pad(1, fill=-0.5).apply(pixels.astype(np.float32), NO_DRAWS)
    assert floats[0, 0, 0] == -0.5


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_random_crop_is_padding_then_cutting(pixels, mode):
    operation = T.RandomCrop((33, 20), padding=(3, 4), fill=7, padding_mode=mode)
    options = {"constant_values": 7} if mode == "constant" else {}
    padded = np.pad(pixels, ((4, 4), (3, 3), (0, 0)), mode=mode, **options)
    places = set()
    for position in range(50):
        draws = T.Draws(0, 0, position)
        top, left = draws.integer(0, 39 - 33 + 1), draws.integer(1, 53 - 20 + 1)
        expected = padded[top : top + 33, left : left + 20]
        assert np.array_equal(operation.apply(pixels, draws), expected)
        places.add((top, left))
    assert len(places) > 40


def test_random_crop_pads_where_needed(pixels):
    operation = T.RandomCrop((40, 20), pad_if_needed=True)
    rows = set()
    for position in range(60):
        result = operation.apply(pixels, T.Draws(0, 0, position))
        assert result.shape == (40, 20, 3)
        rows.add(int(np.flatnonzero(result.any((1, 2)))[0]))
    assert rows == set(range(10))  # 9 rows lack, added above and below
    with pytest.raises(DecodeError, match="pad_if_needed"):
        T.RandomCrop((40, 20)).apply(pixels, NO_DRAWS)


def test_masks_and_boxes_follow():
    mask, key, boxes = np.zeros((31, 47), np.uint8), T.SampleKey(5), np.array([[3, 4, 10, 12]], np.float32)
    mask[4:12, 3:10] = 1
    operations = (
        T.Pad((1, 2), fill=(9, 9, 9)),
        T.RandomVerticalFlip(1.0),
        T.RandomCrop((34, 48), 3),
        T.RandomInvert(),
    )
    T.check_joint(operations, boxes=True)
    moved = T.MovedMask(T.mask_operations(operations), "image").move(mask, key, mask.shape)
    x1, y1, x2, y2 = T.MovedBoxes(operations, "image").move(boxes, key, mask.shape)[0].astype(int)
    assert moved.shape == (34, 48)
    assert moved.sum() == 56
    assert (moved[y1:y2, x1:x2] == 1).all()


def test_vertical_flip(pixels):
    assert np.array_equal(T.RandomVerticalFlip(1.0).apply(pixels, NO_DRAWS), pixels[::-1])
    assert np.array_equal(T.RandomVerticalFlip(0.0).apply(pixels, NO_DRAWS), pixels)


def test_channels_are_told(pixels):
    operations = [T.RandomGrayscale(1.0), T.Grayscale(1), T.ToDtype("float32"), T.Normalize([0.5], [0.5])]
    assert T.output_channels(operations, 3) == 1
    assert T.output_spec(operations, 3).dtype == "float32"
    assert T.apply_program(operations, pixels, T.SampleKey()).shape == (1, 31, 47)
    with pytest.raises(UsageError, match="1 channels"):
        T.output_spec([T.Grayscale(1), T.ToDtype("float32"), T.Normalize([0.5] * 3, [0.5] * 3)])


def test_colours_after_conversion_are_refused(pixels):
    operations = [T.ToDtype("float32", scale=True), T.ColorJitter(0.5)]
    for run in (T.output_spec, lambda ops: T.apply_program(ops, pixels, T.SampleKey())):
        with pytest.raises(UsageError, match="uint8"):
            run(operations)
    with pytest.raises(UsageError, match="uint8"):
        T.RandomInvert(1.0).apply(pixels.astype(np.float32), NO_DRAWS)
    assert T.native_specs(operations) is None


def test_pixelwise_operations_keep_size_and_type():
    assert T.output_spec([T.Resize((8, 9)), T.ColorJitter(0.5), T.RandomErasing()]) == (
        "uint8",
        "NCHW",
        (8, 9),
    )
    assert T.output_spec([T.RandomInvert(), T.CenterCrop(4), T.ToDtype("float16")]).fixed_size == (4, 4)


def test_jitter_draws_every_order():
    operation = T.ColorJitter(0.5, 0.5, 0.5, 0.2)
    orders = {tuple(which for which, _ in operation.factors(T.Draws(3, 0, i))) for i in range(600)}
    assert len(orders) == 24
    for i in range(100):
        factors = dict(operation.factors(T.Draws(3, 0, i)))
        assert all(0.5 <= factors[which] <= 1.5 for which in range(3))
        assert -0.2 <= factors[3] <= 0.2
    assert T.ColorJitter().factors(NO_DRAWS) == []
    assert T.ColorJitter(brightness=3).brightness == (0.0, 4.0)
    assert T.ColorJitter((1, 1), 0).factors(NO_DRAWS) == []


def test_hue_turns_colours():
    red = np.zeros((1, 1, 3), np.uint8)
    red[..., 0] = 255
    assert arithmetic.adjust_hue(red, 1 / 3).tolist() == [[[0, 255, 0]]]
    assert arithmetic.adjust_hue(red, -1 / 3).tolist() == [[[0, 0, 255]]]
    assert arithmetic.adjust_hue(red, 0.5).tolist() == [[[0, 255, 255]]]


def test_blur_keeps_flat_images_and_the_sum_of_weights():
    flat = np.full((9, 3, 3), 200, np.uint8)
    assert (arithmetic.gaussian_blur(flat, (21, 9), 5.0) == 200).all()
    for sigma in (1e-3, 0.1, 1.0, 1e9):
        assert sum(arithmetic.gaussian_weights(23, sigma)) == 65536
        assert min(arithmetic.gaussian_weights(255, sigma)) >= 0


def test_erasing_boxes(pixels):
    operation = T.RandomErasing(0.5, scale=(0.1, 0.3), ratio=(0.5, 2.0), value=(1, 2, 3))
    areas = []
    for position in range(800):
        box = operation.box(200, 300, T.Draws(0, 0, position))
        if box is not None:
            top, left, height, width = box
            assert top >= 0
            assert left >= 0
            assert top + height <= 200
            assert left + width <= 300
            areas.append(height * width / 60_000)
    assert 330 < len(areas) < 470
    assert 0.09 < min(areas) < max(areas) < 0.31
    result = T.RandomErasing(1.0, value=(1, 2, 3)).apply(pixels, NO_DRAWS)
    assert (result != pixels).any()
    assert (result[(result != pixels).any(2)] == [1, 2, 3]).all()


def test_random_values():
    values = normal_values(5, 100_000)
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    assert abs(np.mean(values**4) - 3) < 0.2
    block = philox4x32((2, 0, 0, 0), (5, 1))
    assert byte_values(5 + 2**32, 40)[32:36].tolist() == list(block[0].to_bytes(4, "little"))


def test_normalising_after_erasing_runs_in_python(pixels):
    operations = [
        T.ToDtype("float32"),
        T.RandomErasing(1.0, value=8),
        T.Normalize([4], [2]),
        T.Layout("NHWC"),
    ]
    assert T.native_specs(operations) is None
    result = T.apply_program(operations, pixels, T.SampleKey())
    assert (result == 2.0).any()
    assert T.native_specs(operations[:2]) is not None


def test_magnitudes_are_torchs():
    torch = pytest.importorskip("torch")
    for first, last in ((0.0, 0.99), (1.0, 0.0), (0.0, 32.0), (0.0, 135.0), (0.0, 150 / 331 * 224)):
        for bins in (10, 31):
            expected = torch.linspace(first, last, bins).tolist()
            assert [spaced(first, last, bins, i) for i in range(bins)] == expected


def test_warps(pixels):
    space = Space(1.0, 4.0, 4.0, 180.0, 0.9, 4)

    def warp(name, i, negative=False):
        return augment(pixels, name, space, 3, i, negative, (9.0,))

    assert np.array_equal(warp("TranslateX", 2)[:, 4:], pixels[:, :-4])
    assert (warp("TranslateX", 2)[:, :4] == 9).all()
    assert np.array_equal(warp("TranslateY", 1, True)[:-2], pixels[2:])
    assert np.array_equal(warp("Rotate", 2), pixels[::-1, ::-1])
    assert np.array_equal(warp("Rotate", 0), pixels)
    square = pixels[:, :31]
    turned = augment(square, "Rotate", space, 3, 1, False, (0.0,))
    assert np.array_equal(turned, np.rot90(square))
    sheared = warp("ShearX", 2, True)  # row y by y + 1/2 pixels, of which the half is rounded up
    assert np.array_equal(sheared[10, 10:], pixels[10, :-10])


def fake(name, module="torchvision.transforms.v2._color", **attributes):
    kind = type(name, (), {"__module__": module, "__call__": lambda self, image: image})
    instance = kind()
    vars(instance).update(attributes)
    return instance


def test_conversion_by_name():
    nearest = types.SimpleNamespace(value="nearest")
    none = {"interpolation": nearest, "fill": None}
    transforms = [
        fake(
            "RandomCrop", size=(5, 6), padding=[1, 3, 2, 4], pad_if_needed=True, fill=3, padding_mode="edge"
        ),
        fake(
            "RandomCrop",
            module="torchvision.transforms.transforms",
            size=(5, 6),
            padding=[1, 2, 3, 4],
            pad_if_needed=False,
            fill=0,
            padding_mode="constant",
        ),
        fake("Pad", padding=[1, 2], fill={"Image": 4}, padding_mode="constant"),
        fake("RandomVerticalFlip", p=0.1),
        fake("ColorJitter", brightness=(0.5, 1.5), contrast=None, saturation=None, hue=(-0.1, 0.1)),
        fake("GaussianBlur", kernel_size=(3, 5), sigma=[0.1, 2.0]),
        fake("RandAugment", num_ops=2, magnitude=9, num_magnitude_bins=31, **none),
        fake("TrivialAugmentWide", num_magnitude_bins=31, **none),
        fake("ToDtype", dtype="torch.float32", scale=True),
        fake("RandomErasing", p=0.25, scale=(0.02, 0.33), ratio=(0.3, 3.3), value=None),
    ]
    assert T.from_torchvision(transforms) == (
        T.RandomCrop((5, 6), (1, 2, 3, 4), True, 3, "edge"),
        T.RandomCrop((5, 6), (1, 2, 3, 4)),
        T.Pad((1, 2), 4),
        T.RandomVerticalFlip(0.1),
        T.ColorJitter(0.5, hue=0.1),
        T.GaussianBlur((3, 5)),
        T.RandAugment(),
        T.TrivialAugmentWide(),
        T.ToDtype("float32", scale=True),
        T.RandomErasing(0.25, value="random"),
    )


def test_what_takes_bytes_here_is_called_on_floats():
    invert = fake("RandomInvert", p=0.5)
    operations = T.from_torchvision([fake("ToDtype", dtype="torch.float32", scale=True), invert])
    assert isinstance(operations[1], Call)
    assert operations[1].function is invert
    smooth = types.SimpleNamespace(value="bilinear")
    policy = fake("TrivialAugmentWide", num_magnitude_bins=31, interpolation=smooth, fill=None)
    assert isinstance(T.from_torchvision(policy)[0], Call)


def test_within_one_of_torchvision(pixels):
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    pairs = [
        (arithmetic.adjust_brightness(pixels, 1.7), functional.adjust_brightness(tensor, 1.7)),
        (arithmetic.adjust_contrast(pixels, 0.3), functional.adjust_contrast(tensor, 0.3)),
        (arithmetic.adjust_saturation(pixels, 1.9), functional.adjust_saturation(tensor, 1.9)),
        (arithmetic.adjust_hue(pixels, -0.3), functional.adjust_hue(tensor, -0.3)),
        (arithmetic.adjust_sharpness(pixels, 2.2), functional.adjust_sharpness(tensor, 2.2)),
        (arithmetic.gaussian_blur(pixels, (5, 9), 1.3), functional.gaussian_blur(tensor, [5, 9], [1.3, 1.3])),
        (arithmetic.autocontrast(pixels // 2 + 9), functional.autocontrast(tensor // 2 + 9)),
        (arithmetic.equalize(pixels // 2), functional.equalize(tensor // 2)),
        (arithmetic.grayscale(pixels, 3), functional.rgb_to_grayscale(tensor, 3)),
        (arithmetic.solarize(pixels, 99.5), functional.solarize(tensor, 99.5)),
        (arithmetic.posterize(pixels, 3), functional.posterize(tensor, 3)),
    ]
    for ours, theirs in pairs:
        assert np.abs(ours.astype(int) - theirs.numpy().transpose(1, 2, 0)).max() <= 1
