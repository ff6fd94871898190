"""Records as one Parquet file, with the metadata by which Hugging Face knows images and classes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fastload.schema import (
    Audio,
    Bytes,
    Field,
    Image,
    Json,
    Label,
    Ragged,
    Scalar,
    Str,
    StrList,
    Tensor,
    Video,
)

GROUP_RECORDS = 1000
GROUP_BYTES = 64 << 20


def arrow_type(field: Field) -> Any:
    """Return the Arrow type that holds a field's values.

    >>> arrow_type(Tensor("uint8", (2, 3)))
    FixedSizeListType(fixed_size_list<item: fixed_size_list<item: uint8>[3]>[2])
    """
    if isinstance(field, Label):
        return pa.int64()
    if isinstance(field, (Scalar, Tensor, Ragged)):
        # Arrow has no bfloat16; each is a float32 exactly.
        name = "float32" if field.dtype == "bfloat16" else field.dtype
        kind = pa.bool_() if name == "bool" else getattr(pa, name)()
        for size in reversed(() if isinstance(field, Scalar) else field.shape):
            kind = pa.list_(kind) if size is None else pa.list_(kind, size)
        return kind
    if isinstance(field, Image):
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    if isinstance(field, StrList):
        return pa.list_(pa.string())
    if isinstance(field, (Str, Json)):
        return pa.string()
    assert isinstance(field, (Bytes, Audio, Video))
    return pa.binary()


def arrow_value(field: Field, value: Any) -> Any:
    """Return a value as pyarrow takes it for :func:`arrow_type`."""
    if value is None:
        return None
    if isinstance(field, Image):
        return {"bytes": value, "path": None}
    if isinstance(field, Json):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(field, (Scalar, Tensor, Ragged)):
        if field.dtype == "bfloat16":
            value = (np.asarray(value).astype(np.uint32) << 16).view(np.float32)
        array = np.asarray(value)
        if array.dtype == np.float16 and array.ndim == 0:
            return np.float16(value)
        return array.item() if array.ndim == 0 else _nested(array)
    return int(value) if isinstance(field, Label) else value


def _nested(array: np.ndarray[Any, Any]) -> Any:
    """Return nested lists whose innermost level stays an array, which pyarrow reads fastest."""
    return array if array.ndim == 1 else [_nested(part) for part in array]


def _feature(field: Field) -> dict[str, Any]:
    """Return what Hugging Face's metadata call a field."""
    if isinstance(field, Image):
        return {"_type": "Image"}
    if isinstance(field, Label):
        return {"names": list(field.classes), "_type": "ClassLabel"}
    if isinstance(field, StrList):
        return {"feature": {"dtype": "string", "_type": "Value"}, "_type": "Sequence"}
    if isinstance(field, (Scalar, Tensor, Ragged)):
        feature: dict[str, Any] = {
            "dtype": "float32" if field.dtype == "bfloat16" else field.dtype,
            "_type": "Value",
        }
        for size in reversed(() if isinstance(field, Scalar) else tuple(field.shape)):
            feature = {"feature": feature, "_type": "Sequence", **({} if size is None else {"length": size})}
        return feature
    return {"dtype": "string" if isinstance(field, (Str, Json)) else "binary", "_type": "Value"}


def _metadata(fields: Mapping[str, Field]) -> dict[bytes, bytes]:
    features = {name: _feature(field) for name, field in fields.items()}
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


def write_parquet(path: Path, records: Iterable[Mapping[str, Any]], fields: Mapping[str, Field]) -> list[str]:
    """Write records to one Parquet file and return notes on what changed its type. Raises OSError."""
    columns = [pa.field(name, arrow_type(field), field.nullable) for name, field in fields.items()]
    schema = pa.schema(columns, metadata=_metadata(fields))
    rows: dict[str, list[Any]] = {name: [] for name in fields}
    held = size = 0
    with pq.ParquetWriter(path, schema) as writer:

        def flush() -> None:
            arrays = [pa.array(rows[column.name], column.type) for column in columns]
            writer.write_table(pa.table(arrays, schema=schema))
            for values in rows.values():
                values.clear()

        for record in records:
            for name, field in fields.items():
                value = record[name]
                rows[name].append(arrow_value(field, value))
                size += getattr(value, "nbytes", 0) or (len(value) if isinstance(value, (bytes, str)) else 8)
            held += 1
            if held >= GROUP_RECORDS or size >= GROUP_BYTES:
                flush()
                held = size = 0
        if held:
            flush()
    notes = [f"{name} is JSON, written as text" for name, field in fields.items() if isinstance(field, Json)]
    if any(getattr(field, "dtype", None) == "bfloat16" for field in fields.values()):
        notes.append("bfloat16 is written as float32, which holds it exactly")
    return notes
