"""Which field an Arrow column becomes, and how its values are read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fastload.errors import SourceError
from fastload.schema import Bytes, Field, Image, Label, Ragged, Scalar, Str, StrList, Tensor


@dataclasses.dataclass(frozen=True)
class Column:
    """A leaf column: ``path`` of names down from the top, its Arrow type, and what it becomes."""

    name: str
    path: tuple[str, ...]
    arrow_type: Any
    field: Field
    may_be_null: bool


def primitive_name(arrow_type: Any) -> str | None:
    """Return the dtype of an Arrow number or bool; None for any other type.

    >>> primitive_name(pa.float16()), primitive_name(pa.string())
    ('float16', None)
    """
    names = {"bool": "bool", "halffloat": "float16", "float": "float32", "double": "float64"}
    text = str(arrow_type)
    if pa.types.is_integer(arrow_type):
        return text
    return names.get(text)


def is_text(arrow_type: Any) -> bool:
    """Say whether values are texts."""
    return str(arrow_type) in ("string", "large_string", "string_view")


def is_binary(arrow_type: Any) -> bool:
    """Say whether values are bytes."""
    text = str(arrow_type)
    return text in ("binary", "large_binary", "binary_view") or text.startswith("fixed_size_binary[")


def is_free_list(arrow_type: Any) -> bool:
    """Say whether values are lists of any length."""
    return bool(pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type))


def is_image_struct(arrow_type: Any) -> bool:
    """Say whether a type is Hugging Face's image: a struct of ``bytes`` and ``path``."""
    if not pa.types.is_struct(arrow_type) or arrow_type.num_fields != 2:
        return False
    types = {field.name: field.type for field in arrow_type}
    return set(types) == {"bytes", "path"} and is_binary(types["bytes"]) and is_text(types["path"])


def list_shape(arrow_type: Any) -> tuple[tuple[int | None, ...], Any]:
    """Return the shape of nested lists, None where free, and the type of their elements.

    >>> list_shape(pa.list_(pa.list_(pa.int8(), 3)))
    ((None, 3), DataType(int8))
    """
    shape: list[int | None] = []
    while True:
        if pa.types.is_fixed_size_list(arrow_type):
            shape.append(arrow_type.list_size)
        elif is_free_list(arrow_type):
            shape.append(None)
        else:
            return tuple(shape), arrow_type
        arrow_type = arrow_type.value_type


def field_of(arrow_type: Any, name: str, *, image: bool = False) -> Field:
    """Return the field that a leaf column becomes. Raises SourceError where there is none.

    >>> field_of(pa.list_(pa.uint16()), "tokens")
    Ragged(nullable=False, codec='raw', dtype='uint16', shape=(None,))
    """
    if pa.types.is_dictionary(arrow_type):
        return field_of(arrow_type.value_type, name, image=image)
    if image and (is_binary(arrow_type) or is_image_struct(arrow_type)):
        return Image()
    dtype = primitive_name(arrow_type)
    if dtype is not None:
        return Scalar(dtype)
    if is_text(arrow_type):
        return Str()
    if is_binary(arrow_type):
        return Bytes()
    shape, element = list_shape(arrow_type)
    dtype = primitive_name(element)
    if shape and dtype is not None:
        sizes = tuple(size for size in shape if size is not None)
        return Tensor(dtype, sizes) if None not in shape else Ragged(dtype, shape)
    if shape == (None,) and is_text(element):
        return StrList()
    raise SourceError(
        f"columns of type {arrow_type} have no field type",
        field=name,
        hint="cast it to numbers, text, bytes or lists of them, or name the columns to take with --columns",
    )


def label_classes(schema: Any) -> dict[str, list[str]]:
    """Return the class names of the columns that Hugging Face's metadata marks as ClassLabel."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {
            name: list(feature["names"])
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, TypeError, ValueError):
        return {}


def leaves(schema: Any) -> Iterator[tuple[str, tuple[str, ...], Any, bool]]:
    """Yield (dotted name, path, type, whether it may be null) of each leaf column, structs flattened.

    Raises SourceError where a name occurs twice.
    """
    seen: set[str] = set()

    def descend(
        field: Any, path: tuple[str, ...], null: bool
    ) -> Iterator[tuple[str, tuple[str, ...], Any, bool]]:
        path, null = (*path, field.name), null or field.nullable
        if pa.types.is_struct(field.type) and not is_image_struct(field.type):
            for child in field.type:
                yield from descend(child, path, null)
            return
        name = ".".join(path)
        if name in seen:
            raise SourceError("a column occurs twice", field=name, hint="rename one of them")
        seen.add(name)
        yield name, path, field.type, null

    for field in schema:
        yield from descend(field, (), False)


def extract(table: Any, path: Sequence[str]) -> Any:
    """Return a leaf column of a table or batch as one Arrow array; a null struct makes its leaves null."""
    array = table.column(path[0])
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # Older releases of pyarrow keep the chunks.
            array = pa.concat_arrays(array.chunks)
    for name in path[1:]:
        array = array.flatten()[array.type.get_field_index(name)]
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def values_of(column: Column, array: Any) -> list[Any]:
    """Return the values of a leaf column, one a record; an entry that is a SourceError is an unfit record."""
    field = column.field
    if isinstance(field, Image) and pa.types.is_struct(array.type):
        pictures = array.flatten()[array.type.get_field_index("bytes")]
        return list(pictures.to_pylist())
    if isinstance(field, (Scalar, Label)):
        return _numbers(array)
    if isinstance(field, (Tensor, Ragged)):
        return _arrays(column, array, field)
    return list(array.to_pylist())


def _numbers(array: Any) -> list[Any]:
    if array.null_count:
        # to_numpy would turn integers with nulls into floats.
        return list(array.to_pylist())
    return list(array.to_numpy(zero_copy_only=False))


def _arrays(column: Column, array: Any, field: Tensor | Ragged) -> list[Any]:
    if isinstance(field, Ragged) and field.shape == (None,) and not array.flatten().null_count:
        flat = array.flatten()  # Skips nulls, and honours the array's slice.
        values = flat.to_numpy(zero_copy_only=False)
        lengths = np.asarray(array.value_lengths().fill_null(0))
        ends = np.cumsum(lengths)
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        return [
            values[end - length : end] if present else None
            for end, length, present in zip(ends, lengths, valid, strict=True)
        ]
    return [_nested(column, value, field) for value in array.to_pylist()]


def _nested(column: Column, value: Any, field: Tensor | Ragged) -> Any:
    if value is None:
        return None
    try:
        made = np.array(value, dtype=field.numpy_dtype)
    except TypeError:
        return SourceError("a null inside a list", field=column.name)
    except ValueError:
        return SourceError("inner lists of unequal lengths", field=column.name)
    if not made.size:  # NumPy cannot know the inner dimensions of an empty list.
        made = made.reshape(tuple(0 if size is None else size for size in field.shape))
    return made
