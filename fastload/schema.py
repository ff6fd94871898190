"""What a record holds: field types and the schema, as docs/format.md section 3 defines them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fastload.errors import SchemaError

__all__ = [
    "DTYPE_BYTES",
    "Audio",
    "Bytes",
    "Field",
    "HeapField",
    "Image",
    "Json",
    "Label",
    "Ragged",
    "Scalar",
    "Schema",
    "Str",
    "StrList",
    "Tensor",
    "Video",
    "canonical_json",
]

DTYPE_BYTES: dict[str, int] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""Bytes of one element of each dtype. NumPy has no bfloat16: there it is uint16 holding the bits."""

CODECS = ("raw", "zstd")
MAX_FIELDS = 10_000
MAX_NAME_BYTES = 255
MAX_ITEM_BYTES = 1 << 40


def canonical_json(value: object) -> bytes:
    """Return ``value`` as the one JSON text that checksums are made over.

    Raises SchemaError for what JSON cannot hold (NaN and infinity included).

    >>> canonical_json({"b": 1, "a": ["é"]}).decode()
    '{"a":["é"],"b":1}'
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise SchemaError(f"not representable as JSON: {error}") from error


def _check_dtype(dtype: object) -> str:
    name = str(dtype).removeprefix("torch.") if not isinstance(dtype, str) else dtype
    if name not in DTYPE_BYTES:
        name = getattr(dtype, "__name__", name)  # numpy scalar types: np.uint8
    if name not in DTYPE_BYTES:
        raise SchemaError(f"unknown dtype {dtype!r}", hint=f"use one of {', '.join(DTYPE_BYTES)}")
    return name


def _check_dimension(size: object, *, least: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not least <= size < 1 << 63:
        raise SchemaError(f"a dimension is {size!r}", hint=f"give an integer of {least} or more")
    return size


@dataclasses.dataclass(frozen=True)
class Field:
    """The base of all field types. ``nullable`` fields may hold None.

    Two families: column fields have a fixed size (``item_bytes``), heap fields (:class:`HeapField`)
    have not.
    """

    type_name: ClassVar[str]
    nullable: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def is_heap(self) -> bool:
        """Whether values have no fixed size, and live in the shard's heap."""
        return isinstance(self, HeapField)

    def to_json(self) -> dict[str, Any]:
        """Return the field as the schema JSON writes it, without its name."""
        out: dict[str, Any] = {"type": self.type_name}
        for attribute in dataclasses.fields(self):
            value = getattr(self, attribute.name)
            if attribute.default is dataclasses.MISSING or value != attribute.default:
                out[attribute.name] = list(value) if isinstance(value, tuple) else value
        return out


@dataclasses.dataclass(frozen=True)
class ColumnField(Field):
    """The base of fields of a fixed size."""

    @property
    def item_bytes(self) -> int:
        """Bytes of one record's item in the column."""
        raise NotImplementedError

    @property
    def numpy_dtype(self) -> str:
        """NumPy's name of the element type, little-endian (uint16 for bfloat16)."""
        raise NotImplementedError

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one record's item; ``()`` for a scalar."""
        return ()


def numpy_dtype_of(dtype: str) -> str:
    """Return NumPy's little-endian name of one of :data:`DTYPE_BYTES`.

    >>> numpy_dtype_of("bfloat16"), numpy_dtype_of("float32")
    ('<u2', '<f4')
    """
    if dtype == "bfloat16":
        return "<u2"
    if dtype == "bool":
        return "|b1"
    kind = {"i": "i", "u": "u", "f": "f"}[dtype[0]]
    size = DTYPE_BYTES[dtype]
    return f"{'|' if size == 1 else '<'}{kind}{size}"


@dataclasses.dataclass(frozen=True)
class Scalar(ColumnField):
    """One number of ``dtype``.

    >>> Scalar("float32").item_bytes
    4
    """

    type_name: ClassVar[str] = "scalar"
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype))

    @property
    def item_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def numpy_dtype(self) -> str:
        return numpy_dtype_of(self.dtype)


@dataclasses.dataclass(frozen=True)
class Label(ColumnField):
    """A class: an int64 index into ``classes``. A record may give the index or the class's name.

    >>> Label(["cat", "dog"]).classes
    ('cat', 'dog')
    """

    type_name: ClassVar[str] = "label"
    classes: tuple[str, ...]

    if TYPE_CHECKING:  # any sequence is taken, and kept as a tuple

        def __init__(self, classes: Sequence[str], *, nullable: bool = False) -> None: ...

    def __post_init__(self) -> None:
        classes = self.classes
        if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
            raise SchemaError(f"classes are {classes!r}", hint="give a list of class names")
        object.__setattr__(self, "classes", tuple(classes))
        if len(set(self.classes)) != len(self.classes):
            twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
            raise SchemaError(f"class names occur twice: {', '.join(twice[:5])}")

    @property
    def item_bytes(self) -> int:
        return 8

    @property
    def numpy_dtype(self) -> str:
        return "<i8"


@dataclasses.dataclass(frozen=True)
class Tensor(ColumnField):
    """An array of one fixed ``shape``.

    >>> Tensor("uint8", (3, 32, 32)).item_bytes
    3072
    """

    type_name: ClassVar[str] = "tensor"
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype))
        shape = tuple(_check_dimension(size, least=0) for size in self.shape)
        object.__setattr__(self, "shape", shape)
        if math.prod(shape) * DTYPE_BYTES[self.dtype] > MAX_ITEM_BYTES or len(shape) > 32:
            raise SchemaError(
                f"a tensor of {self.dtype} {shape} is too large", hint="the limit is 2^40 bytes a record"
            )

    @property
    def item_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def numpy_dtype(self) -> str:
        return numpy_dtype_of(self.dtype)

    @property
    def item_shape(self) -> tuple[int, ...]:
        return self.shape


@dataclasses.dataclass(frozen=True)
class HeapField(Field):
    """The base of fields without a fixed size. ``codec`` is ``"raw"`` or ``"zstd"``."""

    codec: str = dataclasses.field(default="raw", kw_only=True)

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise SchemaError(f"unknown codec {self.codec!r}", hint=f"use one of {', '.join(CODECS)}")

    @property
    def alignment(self) -> int:
        """Bytes that a value's start in the heap is aligned to."""
        return 1


@dataclasses.dataclass(frozen=True)
class Ragged(HeapField):
    """An array whose dimensions that are None differ between records; by default one free dimension.

    >>> Ragged("uint16").shape, Ragged("float32", (None, 3)).free_dimensions
    ((None,), (0,))
    """

    type_name: ClassVar[str] = "ragged"
    dtype: str
    shape: tuple[int | None, ...] = (None,)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "dtype", _check_dtype(self.dtype))
        shape = tuple(None if size is None else _check_dimension(size, least=1) for size in self.shape)
        object.__setattr__(self, "shape", shape)
        if None not in shape:
            raise SchemaError(f"no dimension of {shape} is None", hint="use Tensor for a fixed shape")
        if len(shape) > 32 or self.inner_bytes > MAX_ITEM_BYTES:
            raise SchemaError(f"a ragged tensor of {self.dtype} {shape} is too large")

    @property
    def alignment(self) -> int:
        return 8 if self.codec == "raw" else 1

    @property
    def numpy_dtype(self) -> str:
        """NumPy's name of the element type, little-endian (uint16 for bfloat16)."""
        return numpy_dtype_of(self.dtype)

    @property
    def free_dimensions(self) -> tuple[int, ...]:
        """Which dimensions are free."""
        return tuple(i for i, size in enumerate(self.shape) if size is None)

    @property
    def inner_bytes(self) -> int:
        """Bytes of the fixed dimensions together: a payload of one free dimension is a multiple of it."""
        return math.prod(size for size in self.shape if size is not None) * DTYPE_BYTES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "shape": list(self.shape)}


@dataclasses.dataclass(frozen=True)
class Bytes(HeapField):
    """Any bytes."""

    type_name: ClassVar[str] = "bytes"


@dataclasses.dataclass(frozen=True)
class Str(HeapField):
    """Text, stored as UTF-8."""

    type_name: ClassVar[str] = "str"


@dataclasses.dataclass(frozen=True)
class StrList(HeapField):
    """A list of texts."""

    type_name: ClassVar[str] = "str_list"

    @property
    def alignment(self) -> int:
        return 8 if self.codec == "raw" else 1


@dataclasses.dataclass(frozen=True)
class Json(HeapField):
    """Anything that JSON holds."""

    type_name: ClassVar[str] = "json"


@dataclasses.dataclass(frozen=True)
class Image(HeapField):
    """An encoded image file (JPEG, PNG, WebP, …), kept as it is; or raw pixels.

    A record gives the file's bytes, or uint8 pixels of shape (height, width, 3), for mode ``"L"``
    (height, width, 1), which are stored as a binary PPM or PGM file and load without decoding.

    ``mode`` is what decoding converts to: None and ``"RGB"`` give three channels, ``"L"`` one.
    """

    type_name: ClassVar[str] = "image"
    mode: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in (None, "RGB", "L"):
            raise SchemaError(f"unknown image mode {self.mode!r}", hint="use None, 'RGB' or 'L'")


@dataclasses.dataclass(frozen=True)
class Audio(HeapField):
    """An encoded audio file, kept as it is."""

    type_name: ClassVar[str] = "audio"


@dataclasses.dataclass(frozen=True)
class Video(HeapField):
    """An encoded video file, kept as it is."""

    type_name: ClassVar[str] = "video"


FIELD_TYPES: dict[str, type[Field]] = {
    cls.type_name: cls
    for cls in (Scalar, Label, Tensor, Ragged, Bytes, Str, StrList, Json, Image, Audio, Video)
}


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        raise SchemaError(f"a field is named {name!r}", hint=f"use 1 to {MAX_NAME_BYTES} bytes of text")
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in name):
        raise SchemaError(f"a field's name has control characters: {name!r}")
    return name


class Schema(Mapping[str, Field]):
    """The fields of a record by name, in order. Immutable.

    Nested mappings flatten to dotted names. Raises SchemaError where the format does.

    >>> schema = Schema({"image": Image(), "label": Label(["cat", "dog"]), "meta": {"year": Scalar("int16")}})
    >>> list(schema)
    ['image', 'label', 'meta.year']
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        flat: dict[str, Field] = {}
        self._flatten(fields, "", flat)
        if not 1 <= len(flat) <= MAX_FIELDS:
            raise SchemaError(f"a schema of {len(flat)} fields", hint=f"give 1 to {MAX_FIELDS} fields")
        self._fields = flat
        self._heap_names = tuple(name for name, field in flat.items() if field.is_heap)
        self._json_bytes = canonical_json(self.to_json())

    @classmethod
    def _flatten(cls, fields: Mapping[str, Any], prefix: str, out: dict[str, Field]) -> None:
        for key, field in fields.items():
            name = _check_name(f"{prefix}{key}" if isinstance(key, str) else key)
            if isinstance(field, Field):
                if name in out:
                    raise SchemaError(f"field {name!r} occurs twice")
                out[name] = field
            elif isinstance(field, Mapping):
                cls._flatten(field, f"{name}.", out)
            else:
                raise SchemaError(
                    f"field {name!r} is {field!r}",
                    hint="give a field type, for example fastload.Scalar('int64')",
                )

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self._json_bytes == other._json_bytes

    def __hash__(self) -> int:
        return hash(self._json_bytes)

    def __repr__(self) -> str:
        return f"Schema({self._fields!r})"

    @property
    def heap_names(self) -> tuple[str, ...]:
        """Names of the heap fields, in order: heap field v of docs/format.md is ``heap_names[v]``."""
        return self._heap_names

    @property
    def json_bytes(self) -> bytes:
        """The schema as canonical JSON: what a shard's directory holds."""
        return self._json_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the schema as the JSON object of docs/format.md section 3."""
        return {"fields": [{"name": name, **field.to_json()} for name, field in self._fields.items()]}

    @classmethod
    def from_json(cls, value: object) -> Schema:
        """Return the schema that a JSON object describes. Raises SchemaError for anything else."""
        if not isinstance(value, dict) or set(value) != {"fields"} or not isinstance(value["fields"], list):
            raise SchemaError("a schema is an object with a list 'fields'")
        fields: dict[str, Field] = {}
        for item in value["fields"]:
            name, field = cls._field_from_json(item)
            if name in fields:
                raise SchemaError(f"field {name!r} occurs twice")
            fields[name] = field
        return cls(fields)

    @staticmethod
    def _field_from_json(item: object) -> tuple[str, Field]:
        if not isinstance(item, dict):
            raise SchemaError(f"a field is {item!r}, not an object")
        keys = dict(item)
        name, type_name = _check_name(keys.pop("name", None)), keys.pop("type", None)
        if not isinstance(type_name, str) or type_name not in FIELD_TYPES:
            raise SchemaError(
                f"field {name!r} has the unknown type {type_name!r}", hint="a newer fastload may know it"
            )
        cls = FIELD_TYPES[type_name]
        known = {attribute.name for attribute in dataclasses.fields(cls)}
        if not set(keys) <= known:
            raise SchemaError(f"field {name!r} has unknown keys: {', '.join(sorted(set(keys) - known))}")
        if not isinstance(keys.get("nullable", False), bool):
            raise SchemaError(f"field {name!r}: nullable is not a bool")
        for key in ("shape", "classes"):
            if key in keys and not isinstance(keys[key], Sequence):
                raise SchemaError(f"field {name!r}: {key} is not a list")
        try:
            return name, cls(**keys)
        except TypeError as error:
            raise SchemaError(f"field {name!r}: {error}") from error
