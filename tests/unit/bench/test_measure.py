from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastload
from fastload.bench.measure import bench, host_facts
from fastload.bench.memory import MemoryWatch
from fastload.bench.peer import ArrayRows, ImageFiles, ShardRows, prepare
from fastload.convert import convert
from fastload.errors import UsageError
from fastload.format import Manifest, SplitReader
from fastload.storage import open_storage


def reader_of(path: object) -> SplitReader:
    storage = open_storage(str(path))
    manifest = Manifest.load(storage)
    return SplitReader(storage, manifest, manifest.split_name(None, str(path)), verify="first")


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps_rollup")
def test_memory_counts_what_is_touched() -> None:
    with MemoryWatch() as watch:
        block = np.ones(40 << 20, np.uint8)
        del block
    assert watch.peak < 120 << 20
    with MemoryWatch() as watch:
        kept = np.ones(40 << 20, np.uint8)
    assert 38 << 20 < watch.peak < 120 << 20
    assert kept.all()


def test_the_peer_gets_the_same_images(tmp_path: Path, picture_folder: Path) -> None:
    convert(picture_folder, tmp_path / "p.fl")
    (tmp_path / "scratch").mkdir()
    reader = reader_of(tmp_path / "p.fl")
    data = prepare(reader, 20, tmp_path / "scratch")
    assert data.kind == "images"
    assert [Path(file).read_bytes() for file in data.files] == [reader.value(r, "image") for r in range(20)]
    image, label = ImageFiles(data.files, data.labels, 32)[13]
    assert (tuple(image.shape), str(image.dtype), label) == ((3, 32, 32), "torch.uint8", 1)


def test_the_peer_gets_the_same_arrays(tmp_path: Path, record_dataset: str) -> None:
    reader = reader_of(record_dataset)
    assert prepare(reader, 10, tmp_path).kind == "shards"
    assert ShardRows(reader, 10)[3]["y"] == 0
    with fastload.Writer(tmp_path / "x.fl", {"x": fastload.Tensor("float32", (2,))}) as writer:
        for number in range(9):
            writer.append({"x": [number, number]})
    (tmp_path / "scratch").mkdir()
    data = prepare(reader_of(tmp_path / "x.fl"), 8, tmp_path / "scratch")
    rows = ArrayRows(data.arrays)
    assert (data.kind, len(rows), rows[7]["x"].tolist()) == ("arrays", 8, [7, 7])


def test_bench_measures_and_compares(record_dataset: str) -> None:
    seen: list[int] = []
    found = bench(
        record_dataset, batch_size=16, workers=1, rounds=1, seconds=0.2, report=lambda d, t: seen.append(d)
    )
    assert set(found.results) == {"engine", "warm", "cold", "torch"}
    for one in found.results.values():
        assert one.samples_per_second > 0
        assert one.first_batch_seconds > 0
        assert one.rounds == (one.samples_per_second,)
    assert found.ratio == found.results["warm"].samples_per_second / found.results["torch"].samples_per_second
    assert (found.records, found.batch_size, found.image_size, sum(seen)) == (100, 16, None, 4)


def test_what_cannot_be_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only a local dataset"):
        bench("memory://somewhere.fl")
    with fastload.Writer(tmp_path / "x.fl", {"x": fastload.Scalar("int8")}):
        pass
    with pytest.raises(UsageError, match="no records"):
        bench(tmp_path / "x.fl")


def test_host_facts_name_the_machine() -> None:
    assert {"cpu", "cpus", "memory_bytes", "system", "python", "torch", "backend"} == set(host_facts())
