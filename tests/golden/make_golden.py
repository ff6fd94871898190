"""Made tests/golden/v0_1, once. Never run it again for a version that exists.

    python -m tests.golden.make_golden v0_1

The files are what readers of that version must go on reading (and refusing): tests compare with them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from fastload.format import (
    ShardEntry,
    decode_value,
    encode_value,
)
from fastload.schema import (
    DTYPE_BYTES,
    Audio,
    Bytes,
    Image,
    Json,
    Label,
    Ragged,
    Scalar,
    Schema,
    Str,
    StrList,
    Tensor,
    Video,
)
from tests.golden.bad_variants import make_bad
from tests.golden.craft import RANDOM, entry_of, publish, shard_bytes

HERE = Path(__file__).parent


def jsonable(value: Any) -> Any:
    """Return a value as the records' JSON holds it: bytes as hexadecimal digits, arrays as lists."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def golden(
    folder: Path,
    name: str,
    schema: Schema,
    shards: dict[str, list[list[dict[str, Any]]]],
    dictionary: bytes = b"",
) -> None:
    splits: dict[str, list[tuple[ShardEntry, bytes | None]]] = {}
    records: dict[str, list[dict[str, Any]]] = {}
    number = 0
    for split, lists in shards.items():
        splits[split], records[split] = [], []
        for part in lists:
            data = shard_bytes(schema, part, number, dictionary)
            splits[split].append((entry_of(data, f"{RANDOM}-{number:06d}.shard"), data))
            number += 1
            for record in part:
                payloads = {
                    k: None if record[k] is None else bytes(encode_value(f, record[k]))
                    for k, f in schema.items()
                }
                records[split].append(
                    {
                        k: None if p is None else jsonable(decode_value(schema[k], p))
                        for k, p in payloads.items()
                    }
                )
    publish(folder / name, schema, splits, metadata={"made by": "make_golden.py", "é": [1, 2.5, None]})
    text = json.dumps(records, indent=1, ensure_ascii=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def make_good(folder: Path) -> None:
    numbers = Schema({dtype: Scalar(dtype) for dtype in DTYPE_BYTES} | {"x": Tensor("float32", (2, 3))})
    golden(
        folder,
        "numbers",
        numbers,
        {
            "default": [
                [
                    {
                        **{d: (i % 2 if d == "bool" else i * 3) for d in DTYPE_BYTES},
                        "x": np.arange(6).reshape(2, 3) / (i + 1),
                    }
                    for i in range(10)
                ]
            ]
        },
    )
    values = Schema(
        {
            "image": Image(mode="RGB"),
            "audio": Audio(),
            "video": Video(nullable=True),
            "bytes": Bytes(nullable=True),
            "str": Str(),
            "list": StrList(nullable=True),
            "json": Json(),
            "label": Label(["cat", "dög"], nullable=True),
            "one": Ragged("uint16", nullable=True),
            "two": Ragged("float64", (None, 2, None)),
            "packed": Ragged("int32", codec="zstd"),
        }
    )
    records = [
        {
            "image": bytes([i]) * i,
            "audio": b"a" * (i % 3),
            "video": None if i % 2 else b"v" * i,
            "bytes": None if i % 3 == 0 else b"",
            "str": "é" * i,
            "list": None if i == 4 else ["", "x" * i, "ü"][: i % 4],
            "json": {"i": i, "l": [None, True, 0.5]},
            "label": None if i == 2 else i % 2,
            "one": None if i % 4 == 3 else np.arange(i),
            "two": np.full((i % 3, 2, i % 2 + 1), i / 4),
            "packed": np.arange(i * 10),
        }
        for i in range(11)
    ]
    golden(
        folder, "values", values, {"train": [records[:4], records[4:8]], "val": [[], records[8:]], "none": []}
    )
    texts = [{"t": f"the quick brown fox number {i} jumps over the lazy dog"} for i in range(20)]
    dictionary = zstandard.train_dictionary(256, [text["t"].encode() * 3 for text in texts]).as_bytes()
    golden(folder, "dictionary", Schema({"t": Str(codec="zstd")}), {"default": [texts]}, dictionary)


def main(version: str) -> None:
    if (HERE / version).exists():
        sys.exit(f"{version} exists and is never made again")
    make_good(HERE / version)
    make_bad(HERE / version / "bad")


if __name__ == "__main__":
    main(*sys.argv[1:])
