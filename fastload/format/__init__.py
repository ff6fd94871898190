"""Bytes on disk: what docs/format.md specifies, over any storage that fits the protocols."""

from __future__ import annotations

from fastload.format.checksum import crc32c
from fastload.format.collect import GcReport, gc, merge
from fastload.format.layout import ShardEntry
from fastload.format.manifest import Manifest, SplitEntry, fingerprint_of, load_table
from fastload.format.protocols import BytesLike, ReadAt, Storage, WriteTo
from fastload.format.repair import Orphan, RepairReport, repair
from fastload.format.scan import verify_dataset
from fastload.format.shard_reader import ShardReader
from fastload.format.shard_writer import FinishedShard, ShardWriter
from fastload.format.sizes import parse_size
from fastload.format.split import SplitReader
from fastload.format.table import ShardTable
from fastload.format.values import decode_value, encode_value

__all__ = [
    "BytesLike",
    "FinishedShard",
    "GcReport",
    "Manifest",
    "Orphan",
    "ReadAt",
    "RepairReport",
    "ShardEntry",
    "ShardReader",
    "ShardTable",
    "ShardWriter",
    "SplitEntry",
    "SplitReader",
    "Storage",
    "WriteTo",
    "crc32c",
    "decode_value",
    "encode_value",
    "fingerprint_of",
    "gc",
    "load_table",
    "merge",
    "parse_size",
    "repair",
    "verify_dataset",
]
