"""Native image programs against their reference: bit for bit, and within 1 of 255 of Pillow."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastload import _backend
from fastload import transforms as T
from fastload.errors import DecodeError, UsageError

core = _backend.core()
pytestmark = pytest.mark.skipif(core is None, reason="the compiled core is not in use")

SETS = core.simd_sets() if core is not None else ["plain"]
SAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}
RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def fallback(encoded, channels):
    return T.decode_image(encoded, "RGB" if channels == 3 else "L")


def native(ops, encoded, key=(0, 0, 0, 0), channels=3):
    seed, epoch, position, group = key
    program = core.ImageProgram(T.native_specs(ops), channels, group)
    return program.run(encoded, seed, epoch, position, fallback)


def reference(ops, encoded, key=(0, 0, 0, 0), channels=3):
    return T.apply_program(ops, fallback(encoded, channels), key)


def assert_equal(ops, encoded, key=(0, 0, 0, 0), channels=3):
    ours, theirs = native(ops, encoded, key, channels), reference(ops, encoded, key, channels)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert np.array_equal(ours.view(np.uint8), theirs.view(np.uint8))


def smooth(height, width, seed):
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 9 + 2, width // 9 + 2, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noise = random.integers(-12, 13, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


def encode(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def photographs():
    pictures = [smooth(240, 320, 1), smooth(331, 257, 2), smooth(67, 401, 3)]
    data = pytest.importorskip("skimage.data")
    pictures += [Image.fromarray(getattr(data, name)()) for name in ("astronaut", "chelsea", "coffee")]
    return [encode(p, quality=q, subsampling=i % 3) for i, p in enumerate(pictures) for q in (60, 92)]


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOAT = [T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)]
PROGRAMS = {
    "decode": [],
    "train": [T.RandomResizedCrop(224), T.RandomHorizontalFlip()],
    "train float32": [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *FLOAT],
    "train float16 NHWC": [
        T.RandomResizedCrop((96, 131)),
        T.RandomHorizontalFlip(),
        T.ToDtype("float16", scale=True),
        T.Normalize(MEAN, STD),
        T.Layout("NHWC"),
    ],
    "train bfloat16 channels_last": [
        T.RandomResizedCrop(65, interpolation="bicubic"),
        T.ToDtype("bfloat16", scale=True),
        T.Normalize(MEAN, STD),
        T.Layout("channels_last"),
    ],
    "evaluate": [T.Resize(256), T.CenterCrop(224), *FLOAT],
    "evaluate lanczos": [T.Resize(90, "lanczos"), T.CenterCrop((80, 101))],
    "pad": [T.Resize(48, max_size=60), T.CenterCrop(64), T.RandomHorizontalFlip()],
    "flip before": [T.RandomHorizontalFlip(1.0), T.RandomResizedCrop(50), T.RandomHorizontalFlip()],
    "stages": [T.Resize((90, 70)), T.CenterCrop(100), T.CenterCrop(95), T.Resize((33, 200)), T.Resize(20)],
    "steep": [T.Resize(9), T.ToDtype("float16")],
    "nearest": [T.Resize((100, 150), "nearest"), T.RandomHorizontalFlip()],
    "no antialiasing": [T.Resize(50, antialias=False)],
    "padded crop": [T.RandomCrop(100, padding=(7, 300), pad_if_needed=True, fill=(1, 128, 255))],
    "vertical flips": [
        T.RandomVerticalFlip(),
        T.RandomResizedCrop(50),
        T.RandomVerticalFlip(),
        T.RandomHorizontalFlip(),
        T.Pad((1, 2, 3, 4), fill=9),
        T.CenterCrop(70),
        T.RandomVerticalFlip(1.0),
        T.Resize((40, 30), "bicubic"),
    ],
    "tables": [
        T.RandomSolarize(100.5),
        T.Resize(60),
        T.RandomPosterize(3),
        T.RandomInvert(),
        T.CenterCrop(70),
        T.RandomAutocontrast(),
        T.RandomEqualize(),
    ],
    "gray": [T.RandomGrayscale(0.5), T.Resize(40), T.Grayscale(3), T.ToDtype("float16"), T.Layout("NHWC")],
    "one channel": [
        T.Resize(40),
        T.Grayscale(),
        T.RandomVerticalFlip(),
        T.ToDtype("float32", scale=True),
        T.Normalize([0.4], [0.3]),
    ],
    "self-supervised": [
        T.RandomResizedCrop(64),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1),
        T.GaussianBlur((5, 9)),
        T.RandomAdjustSharpness(2.5),
        T.RandomHorizontalFlip(),
        *FLOAT,
        T.RandomErasing(0.9, value="random"),
    ],
    "erased bytes": [T.Resize((50, 60)), T.RandomErasing(0.9, value="random"), T.RandomErasing(0.9)],
    "erased float16": [
        T.Resize((50, 60)),
        T.ToDtype("float16", scale=True),
        T.Normalize(MEAN, STD),
        T.RandomErasing(0.9, value=(0.1, -3.3, 1e-7)),
        T.RandomErasing(0.9, value="random"),
    ],
    "erased bfloat16": [
        T.Resize((50, 60)),
        T.ToDtype("bfloat16"),
        T.RandomErasing(1.0, value="random"),
        T.Layout("channels_last"),
    ],
    "RandAugment": [T.Resize((61, 84)), T.RandAugment(4, fill=(1, 2, 3)), T.RandAugment(magnitude=30)],
    "TrivialAugmentWide": [T.RandomResizedCrop(50), T.TrivialAugmentWide(fill=77), T.TrivialAugmentWide()],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("simd", SETS)
def test_programs_equal_their_reference(photographs, name, simd):
    core.use_simd(simd)
    try:
        for position, encoded in enumerate(photographs):
            assert_equal(PROGRAMS[name], encoded, (7, 3, position, 2))
    finally:
        core.use_simd(SETS[-1])


def test_unknown_instruction_sets_are_refused():
    assert core.simd_sets()[0] == "plain"
    with pytest.raises(UsageError, match="no instruction set named mmx"):
        core.use_simd("mmx")


def test_luma_programs(photographs):
    names = ("decode", "train", "pad", "steep", "evaluate lanczos", "tables", "gray", "TrivialAugmentWide")
    for name in names:
        for position, encoded in enumerate(photographs[:4]):
            assert_equal(PROGRAMS[name], encoded, (0, 0, position, 0), channels=1)
    jitter, sharpness = T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomAdjustSharpness(0.5)
    for position in range(8):
        operations = [jitter, T.GaussianBlur(3), sharpness, T.RandomErasing()]
        assert_equal(operations, photographs[0], (0, 0, position, 0), channels=1)


@pytest.mark.parametrize("name", T.AUGMENTATIONS)
def test_every_augmentation(photographs, name):
    """Each operation of a policy, at magnitudes from none to the most, in both directions."""
    operation, seen = T.TrivialAugmentWide(fill=(5, 6, 7)), set()
    number = T.AUGMENTATIONS.index(name)
    for position in range(2000):
        draws = T.Draws(0, 0, position)
        if draws.integer(0, 14) == number and (draws.integer(1, 31), draws.uniform(2) <= 0.5) not in seen:
            seen.add((draws.integer(1, 31), draws.uniform(2) <= 0.5))
            if len(seen) < 40:
                encoded = photographs[position % len(photographs)]
                assert_equal([T.RandomCrop((60, 71)), operation], encoded, (0, 0, position, 0))
    assert len(seen) > 50


def every_operation(data):
    """Draw one operation of any kind."""
    p = data.draw(st.sampled_from([0.3, 1.0]))
    side = st.integers(1, 60)
    fill = data.draw(st.sampled_from([0, 200, (1, 2, 3)]))
    factor = st.floats(0.0, 3.0)
    kinds = [
        lambda: T.Resize(
            (data.draw(side), data.draw(side)), data.draw(st.sampled_from(["bilinear", "nearest"]))
        ),
        lambda: T.CenterCrop((data.draw(side), data.draw(side))),
        lambda: T.RandomResizedCrop((data.draw(side), data.draw(side)), scale=(0.01, 1.0)),
        lambda: T.RandomCrop((data.draw(side), data.draw(side)), data.draw(side), True, fill),
        lambda: T.Pad([data.draw(st.integers(0, 9)) for _ in range(4)], fill),
        lambda: T.RandomHorizontalFlip(p),
        lambda: T.RandomVerticalFlip(p),
        lambda: T.RandomGrayscale(p),
        lambda: T.RandomInvert(p),
        lambda: T.RandomSolarize(data.draw(st.floats(-1, 255)), p),
        lambda: T.RandomPosterize(data.draw(st.integers(0, 8)), p),
        lambda: T.RandomAdjustSharpness(data.draw(factor), p),
        lambda: T.RandomAutocontrast(p),
        lambda: T.RandomEqualize(p),
        lambda: T.ColorJitter(*(data.draw(factor) for _ in range(3)), data.draw(st.floats(0, 0.5))),
        lambda: T.GaussianBlur(
            (2 * data.draw(st.integers(0, 20)) + 1, 2 * data.draw(st.integers(0, 20)) + 1),
            data.draw(st.floats(0.01, 30)),
        ),
        lambda: T.RandomErasing(
            p, (0.0, 0.9), (0.1, 10.0), data.draw(st.sampled_from([7, (1, 2, 3), "random"]))
        ),
        lambda: T.RandAugment(2, data.draw(st.integers(0, 9)), 10, fill=fill),
        lambda: T.TrivialAugmentWide(fill=fill),
    ]
    return data.draw(st.sampled_from(kinds))()


@settings(max_examples=200, deadline=None)
@given(data=st.data(), height=st.integers(1, 60), width=st.integers(1, 60), position=st.integers(0, 2**40))
def test_any_program(data, height, width, position):
    encoded = encode(smooth(height, width, height * 61 + width))
    operations = [every_operation(data) for _ in range(data.draw(st.integers(1, 6)))]
    if data.draw(st.booleans()):
        operations += [*FLOAT, T.RandomErasing(1.0, value=data.draw(st.sampled_from([0.5, "random"])))]
    core.use_simd(data.draw(st.sampled_from(SETS)))
    try:
        assert_equal(operations, encoded, (1, 2, position, 3))
    finally:
        core.use_simd(SETS[-1])


def test_images_smaller_than_their_crop():
    encoded = encode(smooth(20, 30, 6))
    for run in (native, reference):
        with pytest.raises(
            DecodeError, match="RandomCrop cannot cut 31 x 31 pixels out of an image of 30 x 22"
        ):
            run([T.RandomCrop(31, padding=(0, 1))], encoded)
        with pytest.raises(DecodeError, match="padded"):
            run([T.Pad(100_000)], encoded)


@pytest.mark.parametrize("interpolation", RESAMPLING)
def test_crops_are_within_one_of_pillow(photographs, interpolation):
    operation = T.RandomResizedCrop((150, 170), interpolation=interpolation)
    for position, encoded in enumerate(photographs * 3):
        image = Image.open(io.BytesIO(encoded)).convert("RGB")
        draws = T.Draws(5, 0, position, 0, 0)
        top, left, height, width = operation.crop_box(image.height, image.width, draws)
        cut = image.crop((left, top, left + width, top + height))
        expected = np.asarray(cut.resize((170, 150), RESAMPLING[interpolation])).astype(int)
        ours = native([operation, T.Layout("NHWC")], encoded, (5, 0, position, 0))
        assert np.abs(ours - expected).max() <= 1


sides = st.integers(1, 70)


@settings(max_examples=150, deadline=None)
@given(
    height=sides,
    width=sides,
    target=st.tuples(sides, sides),
    options=st.fixed_dictionaries(
        {
            "subsampling": st.sampled_from(list(SAMPLINGS.values())),
            "progressive": st.booleans(),
            "quality": st.integers(20, 100),
            "restart_marker_blocks": st.integers(0, 5),
        }
    ),
    key=st.tuples(
        st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.integers(0, 255)
    ),
    kind=st.sampled_from(["train", "evaluate", "bicubic"]),
)
def test_any_jpeg_any_crop(height, width, target, options, key, kind):
    encoded = encode(smooth(height, width, height * 71 + width), **options)
    ops = {
        "train": [T.RandomResizedCrop(target, scale=(0.01, 1.0)), T.RandomHorizontalFlip()],
        "evaluate": [T.Resize(target[0]), T.CenterCrop(target)],
        "bicubic": [T.RandomResizedCrop(target, interpolation="bicubic")],
    }[kind]
    assert_equal(ops, encoded, key)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF"])
def test_other_formats_go_through_the_fallback(kind):
    encoded = encode(smooth(60, 80, 4), kind)
    assert_equal(PROGRAMS["train float32"], encoded)
    assert_equal(PROGRAMS["decode"], encoded)


def test_gray_and_cmyk_jpegs():
    for mode in ("L", "CMYK"):
        encoded = encode(smooth(61, 83, 5).convert(mode), quality=93)
        for channels in (3, 1):
            assert_equal([T.RandomResizedCrop(40)], encoded, channels=channels)
            assert_equal([], encoded, channels=channels)


def test_exif_orientation_is_not_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert native([], encode(smooth(20, 30, 6), exif=exif)).shape == (3, 20, 30)


def test_damaged_images_are_decode_errors():
    encoded = encode(smooth(64, 64, 7), quality=90)
    for bad in (b"", b"\xff\xd8\xff", b"text, not an image", encoded[: len(encoded) // 2], encoded[:-30]):
        for ops in ([], [T.RandomResizedCrop(8, scale=(0.01, 0.02))]):
            with pytest.raises(DecodeError):
                native(ops, bad)


def test_without_a_fallback_other_formats_are_refused():
    program = core.ImageProgram([], 3, 0)
    with pytest.raises(DecodeError, match="no JPEG"):
        program.run(encode(smooth(5, 5, 8), "PNG"), 0, 0, 0)
    with pytest.raises(ZeroDivisionError):
        program.run(b"other", 0, 0, 0, lambda encoded, channels: 1 // 0)
    with pytest.raises(DecodeError, match="uint8"):
        program.run(b"other", 0, 0, 0, lambda encoded, channels: np.zeros((3, 3)))
    with pytest.raises(DecodeError, match="wrong size"):
        program.run(b"other", 0, 0, 0, lambda encoded, channels: np.zeros((3, 3, 1), np.uint8))


def test_unknown_programs_are_usage_errors():
    for ops in (
        [("swirl", [])],
        [("resize", [])],
        [("to_dtype", [3, 1]), ("center_crop", [3, 3])],
        [("to_dtype", [3, 1]), ("random_invert", [1])],
        [("to_dtype", [3, 1]), ("random_erasing", [1, 0, 1, 0, 0, 1, 5]), ("normalize", [1, 0.5, 0.5])],
        [("pad", [1, 1, 1, 1, 2, 0, 0])],
        [("color_jitter", [1, 1])],
        [("grayscale", [1]), ("pad", [1, 1, 1, 1, 3, 0, 0, 0])],
    ):
        with pytest.raises(UsageError):
            core.ImageProgram(ops, 3, 0)


def test_fixed_sizes_agree():
    more = [[T.Resize(5000)], [T.Resize(5000), T.CenterCrop(9)], [T.RandomCrop(50), T.Pad(3)], [T.Pad(9)]]
    for ops in [*PROGRAMS.values(), *more]:
        assert core.ImageProgram(T.native_specs(ops), 3, 0).fixed_size == T.output_spec(ops).fixed_size


def test_one_program_on_many_threads(photographs):
    ops = PROGRAMS["train float32"]
    program = core.ImageProgram(T.native_specs(ops), 3, 0)
    keys = [(i % len(photographs), i) for i in range(60)]

    def run(pair):
        return program.run(photographs[pair[0]], 1, 2, pair[1])

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(run, keys))
    assert all(np.array_equal(a, run(key)) for a, key in zip(together, keys, strict=True))
