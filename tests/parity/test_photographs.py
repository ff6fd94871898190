"""Exact decoding of JPEG images: within 1 of 255 of Pillow's at every pixel, in segments or not.

The photographs are painted and, where scikit-image or scikit-learn are installed, theirs. With
FASTLOAD_PHOTOGRAPHS=FOLDER (and -s, to see the figures) they are the first 500 JPEG files of that folder;
FASTLOAD_PHOTOGRAPHS_COUNT is another number.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastload import _backend
from fastload import transforms as T
from fastload.bench.photographs import PAINTED, cut_photograph, paint, shipped_photographs
from fastload.transforms.random import Draws

core = _backend.core()
pytestmark = pytest.mark.skipif(core is None, reason="the compiled core is not in use")

KEY = (7, 0)  # seed and epoch
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "gray")


def sampled_otherwise(encoded: bytes, old: int, new: int) -> bytes:
    """Return a baseline image of luma factors ``old`` (2x1 is 0x21) as one of factors ``new``.

    Pillow writes no 4:4:0 and no 4:1:1. An MCU holds as many blocks in either, so that the headers alone need
    to change, the size with them: blocks of luma trade places within their MCU, and the image is as sound as
    before.
    """
    at = encoded.index(b"\xff\xc0")
    data = bytearray(encoded)
    assert data[at + 11] == old
    height, width = (int.from_bytes(data[at + i : at + i + 2], "big") for i in (5, 7))
    sides = []
    for side, shift in ((height, 0), (width, 4)):
        before, after = 8 * (old >> shift & 15), 8 * (new >> shift & 15)
        mcus = -(-side // before)
        sides.append(max(mcus * after - (mcus * before - side) % after, (mcus - 1) * after + 1))
    data[at + 5 : at + 9] = b"".join(side.to_bytes(2, "big") for side in sides)
    data[at + 11] = new
    return bytes(data)


def encode(image: Image.Image, sampling: str, **options) -> bytes:
    file = io.BytesIO()
    if sampling == "gray":
        image.convert("L").save(file, "JPEG", **options)
        return file.getvalue()
    likes = {"4:4:0": "4:2:2", "4:1:1": "4:2:0"}
    image.save(file, "JPEG", subsampling=likes.get(sampling, sampling), **options)
    if sampling in likes:
        return sampled_otherwise(file.getvalue(), *((0x21, 0x12) if sampling == "4:4:0" else (0x22, 0x41)))
    return file.getvalue()


def native(ops, encoded: bytes, position: int) -> np.ndarray:
    return core.ImageProgram(T.native_specs(ops), 3, 0).run(encoded, *KEY, position).transpose(1, 2, 0)


def largest_difference(encoded: bytes, position: int) -> int:
    """Return the largest difference from Pillow over the whole image and crops, resized or not.

    Where the image can be rewritten in segments, each result must be the same from that.
    """
    segmented, _ = core.segment_jpeg(encoded)
    whole = Image.open(io.BytesIO(encoded)).convert("RGB")
    width, height = whole.size
    random = np.random.default_rng(position)
    draws = Draws(*KEY, position, 0, 0)
    part = (int(random.integers(1, height + 1)), int(random.integers(1, width + 1)))
    cut = T.RandomCrop(part)
    programs = [([], whole)]
    top, left = cut.crop_box(height, width, draws)
    programs.append(([cut], whole.crop((left, top, left + part[1], top + part[0]))))
    for size, name in ((int(random.integers(16, 260)), "bilinear"), (96, "bicubic")):
        crop = T.RandomResizedCrop(size, interpolation=name)
        top, left, rows, columns = crop.crop_box(height, width, draws)
        image = whole.crop((left, top, left + columns, top + rows))
        programs.append(([crop], image.resize((size, size), RESAMPLING[name])))
    target = (int(random.integers(8, 200)), int(random.integers(8, 200)))
    programs.append(([T.Resize(target)], whole.resize(target[::-1], RESAMPLING["bilinear"])))
    worst = 0
    for ops, expected in programs:
        made = native(ops, encoded, position)
        if segmented is not None:
            assert np.array_equal(made, native(ops, segmented, position)), ops
        worst = max(worst, int(np.abs(made.astype(int) - np.asarray(expected)).max()))
    return worst


def some_photographs() -> list[bytes]:
    folder = os.environ.get("FASTLOAD_PHOTOGRAPHS")
    if folder:
        count = int(os.environ.get("FASTLOAD_PHOTOGRAPHS_COUNT", "500"))
        files = sorted(file for file in Path(folder).rglob("*.[jJ][pP]*[gG]"))[:count]
        assert len(files) == count
        return [file.read_bytes() for file in files]
    wholes = [Image.open(path).convert("RGB") for path in shipped_photographs().values()]
    wholes += [Image.fromarray(paint(name, width=700, height=500)) for name in PAINTED]
    return [cut_photograph(wholes[i % len(wholes)], i) for i in range(24)]


def test_photographs_are_pillows():
    photographs = some_photographs()
    worst = [largest_difference(data, position) for position, data in enumerate(photographs)]
    in_segments = sum(core.segment_jpeg(data)[0] is not None for data in photographs)
    print(f"{len(worst)} photographs, {in_segments} in segments too: largest difference {max(worst)} of 255")
    assert max(worst) <= 1
    assert in_segments > len(worst) // 2


@settings(max_examples=150, deadline=None)
@given(
    mcus=st.tuples(st.integers(1, 14), st.integers(1, 30)),
    inset=st.tuples(st.integers(0, 15), st.integers(0, 15)),
    sampling=st.sampled_from(SAMPLINGS),
    quality=st.integers(5, 99),
    restart=st.integers(0, 12),
    progressive=st.booleans(),
    position=st.integers(0, 10_000),
)
def test_every_sampling_is_pillows(mcus, inset, sampling, quality, restart, progressive, position):
    # 11, 13, 17, 19, 22, ... MCUs across are among them, which no interval from 3 to 8 divides.
    height, width = (max(1, 16 * count - less) for count, less in zip(mcus, inset, strict=True))
    random = np.random.default_rng(position)
    coarse = random.integers(0, 256, (height // 20 + 2, width // 20 + 2, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(image) + random.normal(0, 6, (height, width, 3))
    image = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
    scans = progressive and sampling not in ("4:4:0", "4:1:1")
    options = {"restart_marker_blocks": restart} if restart else {}
    data = encode(image, sampling, quality=quality, progressive=scans, **options)
    assert largest_difference(data, position) <= 1


def test_widths_that_nothing_near_divides():
    for across in (11, 13, 17, 19, 22, 23, 26):
        for sampling in SAMPLINGS:
            block = 8 if sampling in ("4:4:4", "gray") else 16
            image = Image.fromarray(paint("snow", width=across * block, height=90))
            for less in (0, 1, 7):
                data = encode(image.crop((0, 0, image.width - less, 90)), sampling, quality=90)
                assert largest_difference(data, across) <= 1
