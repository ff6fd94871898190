"""What becomes of JPEG images in a conversion: kept, rewritten in segments, or encoded anew."""

from __future__ import annotations

import collections
import dataclasses
import io
from collections.abc import Iterable
from typing import Any

from fastload import _backend
from fastload.convert.images import inspect
from fastload.convert.source import Record
from fastload.errors import DecodeError, UsageError
from fastload.schema import Image, Schema

HINT = "use one of segment, keep, encode QUALITY, encode QUALITY MAXSIZE"
NO_CORE = "JPEG images were not rewritten in segments: that needs the compiled core"


@dataclasses.dataclass(frozen=True)
class JpegMode:
    """How JPEG images are stored: ``kind`` is ``"segment"``, ``"keep"`` or ``"encode"``.

    ``quality`` (1 to 100) and ``max_size`` (of the longer side in pixels; None: any) belong to ``encode``.
    Where images are rewritten, ``icc`` keeps their colour profile.
    """

    kind: str
    quality: int = 0
    max_size: int | None = None
    icc: bool = False

    @classmethod
    def parse(cls, text: str, *, icc: bool = False) -> JpegMode:
        """Return the mode that ``text`` names. Raises UsageError.

        >>> JpegMode.parse("encode 90 512")
        JpegMode(kind='encode', quality=90, max_size=512, icc=False)
        """
        kind, *numbers = str(text).split() or [""]
        if kind in ("segment", "keep") and not numbers:
            return cls(kind, icc=icc)
        if (
            kind != "encode"
            or not 1 <= len(numbers) <= 2
            or not all(n.isascii() and n.isdigit() for n in numbers)
        ):
            raise UsageError(f"jpeg is {text!r}", hint=HINT)
        quality, max_size = int(numbers[0]), int(numbers[1]) if len(numbers) == 2 else None
        if not 1 <= quality <= 100 or (max_size is not None and not 1 <= max_size <= 65535):
            raise UsageError(f"jpeg is {text!r}", hint="qualities are 1 to 100, sizes 1 to 65535 pixels")
        return cls(kind, quality, max_size, icc)


@dataclasses.dataclass(frozen=True)
class JpegReport:
    """What became of the JPEG images.

    ``images`` is how many there were, ``bytes_before`` and ``bytes_after`` their size. ``kept`` counts, by
    reason, those that were to be rewritten in segments and are stored without.
    """

    images: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    kept: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def total(cls, reports: Iterable[JpegReport]) -> JpegReport:
        """Return the sum of ``reports``.

        >>> JpegReport.total([JpegReport(1, 9, 8, {"damaged": 1}), JpegReport(1, 5, 5, {"damaged": 1})])
        JpegReport(images=2, bytes_before=14, bytes_after=13, kept={'damaged': 2})
        """
        images = before = after = 0
        kept: collections.Counter[str] = collections.Counter()
        for report in reports:
            images += report.images
            before += report.bytes_before
            after += report.bytes_after
            kept.update(report.kept)
        return cls(images, before, after, dict(kept.most_common()))


class JpegRewriter:
    """Rewrites the JPEG images of records, and counts them."""

    def __init__(self, schema: Schema, mode: JpegMode) -> None:
        self._names = [name for name, field in schema.items() if isinstance(field, Image)]
        self._mode = mode
        self._core = None if mode.kind == "keep" else _backend.core()
        self._images = self._before = self._after = 0
        self._kept: collections.Counter[str] = collections.Counter()

    def rewrite(self, record: Record) -> Record:
        """Return the record with its images as they are to be stored.

        Raises DecodeError, naming the field, for an image that is to be encoded anew and cannot be decoded.
        """
        changed: dict[str, object] = {}
        for name in self._names:
            data = record.get(name)
            if not isinstance(data, bytes) or data[:3] != b"\xff\xd8\xff":
                continue
            try:
                changed[name] = self._rewrite(data)
            except DecodeError as error:
                error.field = name if len(self._names) > 1 else None
                raise
        return {**record, **changed} if changed else record

    def _rewrite(self, data: bytes) -> bytes:
        encoded = _encode(data, self._mode) if self._mode.kind == "encode" else data
        result = encoded
        if self._core is not None:
            segmented, reason = self._core.segment_jpeg(encoded, self._mode.icc)
            if segmented is None:
                self._kept[reason] += 1
            else:
                result = segmented
        self._images += 1
        self._before += len(data)
        self._after += len(result)
        return result

    def report(self) -> JpegReport:
        """Return what was done so far."""
        return JpegReport(self._images, self._before, self._after, dict(self._kept))


def _encode(data: bytes, mode: JpegMode) -> bytes:
    """Return a JPEG image encoded anew; as it is where that would only make it larger."""
    from PIL import Image as PillowImage

    orientation = inspect(data).orientation
    target = io.BytesIO()
    try:
        with PillowImage.open(io.BytesIO(data)) as source:
            image: Any = source
            image.load()
            profile = image.info.get("icc_profile") if mode.icc else None
            shrinks = mode.max_size is not None and max(image.size) > mode.max_size
            if shrinks:
                image = _shrunk(image, mode.max_size or 1)
            exif = PillowImage.Exif()
            exif[0x0112] = orientation
            image.save(target, "JPEG", quality=mode.quality, exif=exif, icc_profile=profile)
    except Exception as error:  # Pillow's plugins raise what they like on hostile files.
        raise DecodeError(f"the image cannot be encoded anew: {error}") from error
    encoded = target.getvalue()
    return encoded if shrinks or len(encoded) < len(data) else data


def _shrunk(image: Any, max_size: int) -> Any:
    """Return the image with its longer side ``max_size`` pixels long."""
    from PIL import Image as PillowImage

    scale = max_size / max(image.size)
    size = tuple(max(1, round(side * scale)) for side in image.size)
    return image.resize(size, PillowImage.Resampling.LANCZOS)
