"""Any dataset of PyTorch's kind: an object with ``__getitem__`` and ``__len__``, or one to iterate over.

Nothing here imports torch: tensors are known by their methods, and the dataset brings torch along.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fastload.convert.source import (
    DEFAULT_SPLIT,
    RECORD_OVERHEAD,
    Concurrency,
    Partition,
    SourceItem,
    SourceOptions,
    cut_range,
)
from fastload.errors import SourceError
from fastload.schema import (
    DTYPE_BYTES,
    Bytes,
    Field,
    Image,
    Label,
    Ragged,
    Scalar,
    Schema,
    Str,
    StrList,
    Tensor,
)

SEEN_SAMPLES = 16
"""How many of the first samples the schema is inferred from."""

ENCODINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "png": ("PNG", {"compress_level": 1}),
    "webp": ("WEBP", {"lossless": True, "quality": 20, "method": 2}),
    "jpeg": ("JPEG", {"quality": 95}),
}
"""How Pillow images are stored: png and webp without loss, jpeg at quality 95."""


def load_object(name: str) -> Any:
    """Import ``module:object``; what is callable and no dataset is called first. Raises SourceError."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise SourceError(
            f"{name!r} names no dataset", hint="give module:object, for example mydata:train_set"
        )
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise SourceError(f"{name!r} cannot be imported: {error}") from error
    if isinstance(target, type) or (callable(target) and not hasattr(target, "__getitem__")):
        target = target()
    if not hasattr(target, "__getitem__") and not hasattr(target, "__iter__"):
        raise SourceError(f"{name!r} is a {type(target).__name__}, not a dataset")
    return target


def is_pillow(value: object) -> bool:
    """Say whether a value is a Pillow image, without importing Pillow."""
    return hasattr(value, "getbands") and hasattr(value, "tobytes")


def to_array(value: Any) -> Any:
    """Return a tensor as a NumPy array, bfloat16 as uint16 bits; other values as they are."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    if dtype_name(tensor) == "bfloat16":
        return tensor.view(sys.modules["torch"].int16).numpy().view(np.uint16)
    return tensor.numpy()


def dtype_name(value: Any) -> str:
    """Return the dtype of a tensor or array as the format names it."""
    return str(value.dtype).removeprefix("torch.") if hasattr(value, "detach") else str(value.dtype.name)


def name_parts(sample: Any) -> dict[str, Any]:
    """Return a sample as a flat mapping of names to values.

    Mappings give their keys (nested: dotted), named tuples their names. A tuple of an image and one more
    gives ``image`` and ``label``, any other pair ``x`` and ``y``, longer ones ``field0``, ``field1``, …;
    a sample that is one value gives ``image`` or ``x``.

    >>> name_parts({"a": 1, "b": {"c": 2}}), name_parts((1.5, 2))
    ({'a': 1, 'b.c': 2}, {'x': 1.5, 'y': 2})
    """
    if isinstance(sample, Mapping):
        flat: dict[str, Any] = {}
        for key, value in sample.items():
            nested = isinstance(value, Mapping) and value
            parts = (
                {f"{key}.{inner}": part for inner, part in name_parts(value).items()}
                if nested
                else {key: value}
            )
            for name, part in parts.items():
                if name in flat:
                    raise SourceError("a field occurs twice", field=str(name))
                flat[name] = part
        return flat
    if isinstance(sample, list) and not all(isinstance(item, (int, float, str)) for item in sample):
        sample = tuple(sample)  # A list of numbers or texts is one value.
    if isinstance(sample, tuple):
        names = getattr(sample, "_fields", None)
        if names is None and len(sample) == 2:
            names = ("image", "label") if is_pillow(sample[0]) else ("x", "y")
        return dict(zip(names or [f"field{number}" for number in range(len(sample))], sample, strict=True))
    return {"image" if is_pillow(sample) else "x": sample}


def field_of_value(value: Any, name: str) -> Field:
    """Return the field that holds a value. Raises SourceError where there is none.

    >>> field_of_value(3, "y"), field_of_value(np.zeros((2, 3), "float32"), "x")
    (Scalar(nullable=False, dtype='int64'), Tensor(nullable=False, dtype='float32', shape=(2, 3)))
    """
    if is_pillow(value):
        return Image(mode="L" if value.mode == "L" else None)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        dtype = dtype_name(value)
        if dtype in DTYPE_BYTES:
            return Tensor(dtype, tuple(value.shape)) if len(value.shape) else Scalar(dtype)
        raise SourceError(f"an array of dtype {dtype} has no field type", field=name)
    for kind, dtype in ((bool, "bool"), (int, "int64"), (float, "float64")):
        if isinstance(value, kind):
            return Scalar(dtype)
    if isinstance(value, str):
        return Str()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Bytes()
    if isinstance(value, (list, tuple)) and value:
        if all(isinstance(item, str) for item in value):
            return StrList()
        for kinds, dtype in (((bool,), "bool"), ((int,), "int64"), ((int, float), "float64")):
            if all(isinstance(item, kinds) for item in value):
                return Ragged(dtype)
    raise SourceError(
        f"a value of type {type(value).__name__} has no field type",
        field=name,
        hint="let the dataset return tensors, numbers, text, bytes or Pillow images, or give a schema",
    )


def merge_fields(first: Field, other: Field) -> Field | None:
    """Return the field that holds the values of both: Ragged where shapes differ; None where there is none.

    >>> merge_fields(Tensor("uint8", (3, 4)), Tensor("uint8", (5, 4)))
    Ragged(nullable=False, codec='raw', dtype='uint8', shape=(None, 4))
    """
    if first == other:
        return first
    if not isinstance(first, (Tensor, Ragged)) or not isinstance(other, (Tensor, Ragged)):
        return None
    if first.dtype != other.dtype or len(first.shape) != len(other.shape):
        return None
    pairs = zip(tuple(first.shape), tuple(other.shape), strict=True)
    shape = tuple(a if a == b else None for a, b in pairs)
    return Ragged(first.dtype, shape) if None in shape else first


def infer_schema(samples: Sequence[Any], classes: Sequence[str] | None) -> Schema:
    """Return the schema that holds all ``samples``. Raises SourceError, naming the one that does not fit."""
    fields: dict[str, Field | None] = {}
    nullable: set[str] = set()
    for number, sample in enumerate(samples):
        parts = name_parts(sample)
        if number and set(parts) != set(fields):
            raise SourceError(
                f"the sample has the fields {', '.join(parts)}, the first has {', '.join(fields)}",
                record=number,
            )
        for name, value in parts.items():
            known = fields.setdefault(name, None)
            if value is None:
                nullable.add(name)
                continue
            field = field_of_value(value, name)
            merged = field if known is None else merge_fields(known, field)
            if merged is None:
                raise SourceError(
                    f"the value is {field!r}, before it was {known!r}", record=number, field=name
                )
            fields[name] = merged
    out: dict[str, Field] = {}
    for name, found in fields.items():
        if found is None:
            raise SourceError(f"the first {len(samples)} samples are None", field=name, hint="give a schema")
        if classes and name in ("label", "y", "target") and found == Scalar("int64"):
            found = Label(tuple(classes))
        out[name] = dataclasses.replace(found, nullable=name in nullable)
    return Schema(out)


def encode_image(image: Any, field: Image, encoding: str) -> bytes:
    """Return a Pillow image as an encoded file. Raises SourceError for a mode that cannot be stored."""
    if field.mode == "L" and image.mode != "L":
        raise SourceError(
            f"the image is {image.mode}, the first ones were L", hint="let the dataset return one mode"
        )
    name, options = ENCODINGS[encoding]
    buffer = io.BytesIO()
    try:
        image.save(buffer, name, **options)
    except (OSError, ValueError) as error:
        raise SourceError(f"an image of mode {image.mode} cannot be stored as {name}: {error}") from error
    return buffer.getvalue()


def to_record(sample: Any, schema: Schema, encoding: str) -> dict[str, object]:
    """Return a sample as the record of a schema. Raises SourceError where it does not fit."""
    parts = name_parts(sample)
    if set(parts) != set(schema):
        raise SourceError(f"the sample has the fields {', '.join(parts)}, the schema {', '.join(schema)}")
    record: dict[str, object] = {}
    for name, field in schema.items():
        value = parts[name]
        if isinstance(field, Image) and is_pillow(value):
            record[name] = encode_image(value, field, encoding)
            continue
        dtype = getattr(field, "dtype", None)
        if dtype is not None and hasattr(value, "dtype") and dtype_name(value) != dtype:
            raise SourceError(
                f"the value is of dtype {dtype_name(value)}, the schema says {dtype}", field=name
            )
        record[name] = to_array(value)
    return record


@dataclasses.dataclass(frozen=True)
class DatasetPartition:
    """Samples ``start`` to ``stop`` of a dataset (all of it where ``stop`` is None: one to iterate over).

    ``dataset`` is the object, or the ``module:object`` that another process imports.
    """

    dataset: Any
    schema: Schema
    encoding: str
    start: int
    stop: int | None

    @property
    def records(self) -> int | None:
        return None if self.stop is None else self.stop - self.start

    def _samples(self) -> Iterator[Any]:
        dataset = load_object(self.dataset) if isinstance(self.dataset, str) else self.dataset
        if self.stop is None:
            yield from dataset
            return
        for index in range(self.start, self.stop):
            yield dataset[index]

    def read(self) -> Iterator[SourceItem]:
        number = self.start
        samples = self._samples()
        while True:
            try:
                sample = next(samples)
            except StopIteration:
                return
            except SourceError:
                raise
            except Exception as error:  # The dataset is the user's: whatever it raises is about this sample.
                raise SourceError(
                    f"the dataset raised {type(error).__name__}: {error}", record=number
                ) from error
            where = f"sample {number}"
            try:
                yield where, to_record(sample, self.schema, self.encoding)
            except SourceError as error:
                error.record = number
                yield where, error
            number += 1


class TorchDatasetSource:
    """A PyTorch dataset as a :class:`~fastload.convert.source.Source`.

    ``dataset`` is the object, or ``module:object``. The schema is given, or inferred from the first samples;
    ``classes`` of the options or of the dataset make a Label of an int called ``label``, ``y`` or ``target``.
    """

    def __init__(self, dataset: Any, options: SourceOptions, schema: Schema | None = None) -> None:
        if options.encode not in ENCODINGS:
            raise SourceError(
                f"unknown encoding {options.encode!r}", hint=f"use one of {', '.join(ENCODINGS)}"
            )
        self.notes: list[str] = []
        self.concurrency: Concurrency = "processes" if isinstance(dataset, str) else "none"
        self._named = dataset
        loaded = load_object(dataset) if isinstance(dataset, str) else dataset
        self._count = len(loaded) if hasattr(loaded, "__len__") and hasattr(loaded, "__getitem__") else None
        self._encoding = options.encode
        self._split = options.split or DEFAULT_SPLIT
        first = self._first_samples(loaded)
        if not first:
            raise SourceError("the dataset is empty")
        classes = options.classes or getattr(loaded, "classes", None)
        usable = isinstance(classes, (list, tuple)) and all(isinstance(name, str) for name in classes)
        self.schema = infer_schema(first, classes if usable else None) if schema is None else schema
        sizes = [
            sum(_size(value) for value in to_record(sample, self.schema, self._encoding).values())
            for sample in first
        ]
        self._record_bytes = sum(sizes) // len(sizes)
        if any(isinstance(field, Image) for field in self.schema.values()):
            self.notes.append(f"Pillow images were encoded as {self._encoding}")

    def _first_samples(self, loaded: Any) -> list[Any]:
        if self._count is not None:
            return [loaded[index] for index in range(min(SEEN_SAMPLES, self._count))]
        if iter(loaded) is loaded:
            raise SourceError(
                "an iterator can be read only once", hint="give a dataset that starts anew at each iter()"
            )
        return list(itertools.islice(loaded, SEEN_SAMPLES))

    def split_names(self) -> Sequence[str]:
        return [self._split]

    def partitions(self, split: str, shard_bytes: int) -> Sequence[Partition]:
        if self._count is None:
            return [DatasetPartition(self._named, self.schema, self._encoding, 0, None)]
        ranges = cut_range(self._count, max(1, self._record_bytes - RECORD_OVERHEAD), shard_bytes)
        return [
            DatasetPartition(self._named, self.schema, self._encoding, start, stop) for start, stop in ranges
        ]


def _size(value: Any) -> int:
    return int(getattr(value, "nbytes", 0)) or (len(value) if isinstance(value, (bytes, str, list)) else 8)
