"""The smaller parts: values, tables, manifests, sizes, zstd frames."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fastload.errors import CorruptionError, DecodeError, FormatError, RecordError, UsageError
from fastload.format import Manifest, ShardEntry, ShardTable, decode_value, encode_value, parse_size
from fastload.format.compression import Compressor, Decompressor, train_dictionary
from fastload.format.layout import check_file_name, check_split_name
from fastload.schema import Bytes, Json, Label, Ragged, Scalar, Schema, Str, StrList, Tensor


class TestValues:
    @pytest.mark.parametrize(
        ("field", "value", "expected"),
        [
            (Scalar("int16"), np.int64(-3), -3),
            (Scalar("bool"), True, True),
            (Scalar("bool"), 1, True),
            (Scalar("float32"), 3, 3.0),
            (Scalar("uint8"), np.array(255), 255),
            (Label(["a", "b"]), "b", 1),
            (Label(["a", "b"]), np.int8(1), 1),
            (Str(), "é\0", "é\0"),
            (StrList(), ("a", "", "ü"), ["a", "", "ü"]),
            (StrList(), [], []),
            (Json(), {"a": [1, None]}, {"a": [1, None]}),
            (Bytes(), memoryview(b"ab"), b"ab"),
            (Bytes(), np.array([1, 2], np.uint8), b"\1\2"),
        ],
    )
    def test_accepted(self, field, value, expected):
        assert decode_value(field, encode_value(field, value)) == expected

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            (Tensor("float32", (2, 3)), np.asfortranarray(np.arange(6.0).reshape(2, 3))),
            (Tensor("int32", (2,)), np.array([1, 2], ">i8")),
            (Tensor("uint8", (3,)), np.arange(9, dtype=np.uint8)[::3]),
            (Tensor("int8", (0, 4)), np.zeros((0, 4))),
            (Tensor("float64", ()), np.float32(0.5)),
            (Tensor("uint8", (100, 100)), np.full((100, 100), 7)),
            (Ragged("float32", (None, 3)), []),
            (Ragged("int16", (None, 2, None)), np.ones((3, 2, 4), np.int16)),
            (Ragged("int64", (None, None)), np.zeros((0, 5), np.int64)),
        ],
    )
    def test_arrays(self, field, value):
        read = decode_value(field, encode_value(field, value))
        assert np.array_equal(read, np.asarray(value).reshape(read.shape))
        assert read.dtype == np.dtype(field.numpy_dtype)
        assert not read.flags.writeable
        if np.size(value):
            assert read.shape == np.shape(value)

    def test_bfloat16_rounds_to_nearest_even(self):
        field = Tensor("bfloat16", (6,))
        numbers = np.array([1.0, 1.00390625, 1.01171875, -0.0, np.inf, np.nan], np.float32)
        bits = decode_value(field, encode_value(field, numbers))
        assert bits[:5].tolist() == [0x3F80, 0x3F80, 0x3F82, 0x8000, 0x7F80]
        assert math.isnan(float((bits[5:].astype(np.uint32) << 16).view(np.float32)[0]))
        assert bytes(encode_value(field, bits)) == bits.tobytes()  # uint16 are bits
        with pytest.raises(RecordError, match="too large"):
            encode_value(Scalar("bfloat16"), 3.4e38)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            (Scalar("int8"), 128),
            (Scalar("uint8"), -1),
            (Scalar("int8"), "1"),
            (Scalar("int8"), [1]),
            (Scalar("bool"), 2),
            (Scalar("int64"), 2**63),
            (Scalar("int64"), 1j),
            (Scalar("float32"), 1e39),
            (Scalar("int8"), None),
            (Label(["a"]), 1.0),
            (Label(["a"]), [0]),
            (Tensor("int8", (1,)), [[1]]),
            (Tensor("int8", (1,)), object()),
            (StrList(), "abc"),
            (StrList(), [b"a"]),
            (Json(), {"a": float("inf")}),
            (Json(), {1, 2}),
            (Bytes(), [1, 2]),
            (Bytes(), 5),
        ],
    )
    def test_refused(self, field, value):
        with pytest.raises(RecordError):
            encode_value(field, value)


class TestTable:
    ENTRIES = (
        ShardEntry("a.shard", 3, 500, 100, bytes(range(16))),
        ShardEntry("bü.shard", 0, 600, 200, bytes(16)),
        ShardEntry("c.shard", 2, 700, 300, b"x" * 16),
    )

    def test_round_trip(self):
        data = ShardTable.build(self.ENTRIES)
        table = ShardTable.parse(data, "t")
        assert tuple(table.entries()) == self.ENTRIES
        assert (table.shards, table.records, table.total_bytes) == (3, 5, 1800)
        assert [table.locate(i) for i in range(5)] == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]

    def test_an_empty_table(self):
        table = ShardTable.parse(ShardTable.build([]), "t")
        assert (table.shards, table.records, list(table.entries())) == (0, 0, [])

    def test_any_flipped_bit_is_found(self):
        data = ShardTable.build(self.ENTRIES)
        for bit in range(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(FormatError):
                ShardTable.parse(damaged, "t")

    def test_any_truncation_is_found(self):
        data = ShardTable.build(self.ENTRIES)
        for length in range(len(data)):
            with pytest.raises(FormatError):
                ShardTable.parse(data[:length], "t")


class TestManifest:
    def test_round_trip(self):
        manifest = Manifest(Schema({"x": Str()}), {}, "0" * 32, {"ä": [1, 2.5, None]}, 3)
        assert Manifest.from_bytes(manifest.to_bytes(), "m") == manifest

    def test_white_space_and_order_do_not_matter(self):
        import json

        manifest = Manifest(Schema({"x": Str()}), {}, "0" * 32)
        content = json.loads(manifest.to_bytes())
        text = json.dumps(dict(reversed(content.items()))).encode()
        assert Manifest.from_bytes(text, "m") == manifest

    @pytest.mark.parametrize(
        "data", [b"", b"[]", b"null", b"\xff", b'{"format":"fastload"}', b'{"format":"other"}']
    )
    def test_not_a_manifest(self, data):
        with pytest.raises(FormatError):
            Manifest.from_bytes(data, "m")

    def test_an_edited_manifest(self):
        data = Manifest(Schema({"x": Str()}), {}, "0" * 32).to_bytes()
        with pytest.raises(CorruptionError, match="damaged or edited"):
            Manifest.from_bytes(data.replace(b'"generation": 1', b'"generation": 2'), "m")

    def test_metadata_beyond_the_limit(self):
        with pytest.raises(UsageError, match="limit"):
            Manifest(Schema({"x": Str()}), {}, "0" * 32, {"x": "y" * (64 << 20)}).to_bytes()


class TestNames:
    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "x" * 256, "\ud800"])
    def test_bad_file_names(self, name):
        with pytest.raises(FormatError):
            check_file_name(name, "t")

    @pytest.mark.parametrize("name", ["", ".a", "-a", "a b", "a/b", "x" * 101, None, "ä", "a\n"])
    def test_bad_split_names(self, name):
        with pytest.raises(UsageError):
            check_split_name(name)


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "size"),
        [("1", 1), ("1.5kb", 1500), ("2 GiB", 2 << 30), ("3t", 3 * 10**12), ("7 MiB ", 7 << 20)],
    )
    def test_good(self, text, size):
        assert parse_size(text) == size

    @pytest.mark.parametrize("text", ["", "MB", "-1", "1xb", None, True, 0, "0.1", 1.5])
    def test_bad(self, text):
        with pytest.raises(UsageError):
            parse_size(text)


class TestZstd:
    def test_frames(self):
        for data in (b"", b"x", bytes(10_000_000)):
            frame = Compressor(3).compress(data)
            assert Decompressor.content_size(frame) == len(data)
            assert Decompressor().decompress(frame) == data

    def test_broken_empty_frames(self):
        frame = Compressor(3).compress(b"")
        for broken in (frame[:-1], frame + b"x", frame[:-1] + b"\x3f"):
            with pytest.raises(DecodeError):
                Decompressor().decompress(broken)

    def test_a_frame_needs_its_dictionary(self):
        samples = [b"the quick brown fox %d jumps over the lazy dog" % i for i in range(500)]
        dictionary = train_dictionary(samples, 3)
        assert dictionary
        frame = Compressor(3, dictionary).compress(samples[7])
        assert Decompressor(dictionary).decompress(frame) == samples[7]
        with pytest.raises(DecodeError):
            Decompressor().decompress(frame)

    def test_no_dictionary_where_it_cannot_help(self):
        assert train_dictionary([], 3) == b""
        assert train_dictionary([b""] * 100, 3) == b""
        assert train_dictionary([b"x" * 20_000] * 100, 3) == b""
        assert train_dictionary([b"the quick brown fox %d" % i for i in range(500)], 3, 100) == b""
