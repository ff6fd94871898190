"""Loaders for the record job: fixed-size byte records in random order, with an integer label, in batches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.image_job import Repeated

CLASSES = 100


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be loaded: ``count`` records of ``size`` bytes, kept under ``folder``."""

    folder: Path
    size: int
    count: int
    batch: int
    workers: int

    @functools.cached_property
    def records(self) -> npt.NDArray[np.uint8]:
        """All records, random bytes, mapped from a .npy file that is made where it is missing."""
        file = self.folder / "records.npy"
        if not file.exists():
            draw = np.random.default_rng(0)
            made = np.lib.format.open_memmap(file, "w+", np.uint8, (self.count, self.size))
            for begin in range(0, self.count, 4096):
                end = min(self.count, begin + 4096)
                made[begin:end] = draw.integers(0, 256, (end - begin, self.size), dtype=np.uint8)
            made.flush()
        mapped: npt.NDArray[np.uint8] = np.load(file, mmap_mode="r")
        return mapped


def _source(job: Job) -> None:
    assert len(job.records) == job.count


@dataclasses.dataclass(frozen=True)
class Loader:
    """How a loader is made. ``settings`` says what a reader of figures should know."""

    make: Callable[[Job], Iterable[Any]]
    prepare: Callable[[Job], None] = _source
    settings: str = ""


# --- fastload -------------------------------------------------------------------------------------------


def _fastload_prepare(job: Job) -> None:
    import fastload

    target = job.folder / "records.fl"
    if target.exists():
        return
    schema = {
        "x": fastload.Tensor("uint8", (job.size,)),
        "y": fastload.Label([str(i) for i in range(CLASSES)]),
    }
    with fastload.Writer(str(target), schema=schema) as writer:
        for i in range(job.count):
            writer.append({"x": np.asarray(job.records[i]), "y": i % CLASSES})


def _fastload(job: Job) -> Iterable[Any]:
    import fastload

    dataset = fastload.open(str(job.folder / "records.fl")).as_tuple("x", "y")
    return fastload.DataLoader(
        dataset, batch_size=job.batch, shuffle=True, num_workers=job.workers, drop_last=True
    )


# --- torch ----------------------------------------------------------------------------------------------


class Records:
    """A map-style dataset of the mapped array, one record at a time."""

    def __init__(self, records: npt.NDArray[np.uint8]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        return torch.from_numpy(np.array(self.records[index])), index % CLASSES


class BatchedRecords(Records):
    """The same with a whole batch gathered in one call."""

    def __getitems__(self, indices: list[int]) -> tuple[Any, Any]:
        import torch

        return torch.from_numpy(self.records[indices]), torch.as_tensor(indices) % CLASSES


def _identity(value: Any) -> Any:
    return value


def _torch(job: Job, *, batched: bool, in_process: bool = False) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    workers = 0 if in_process else job.workers
    dataset: Any = BatchedRecords(job.records) if batched else Records(job.records)
    options: dict[str, Any] = {"collate_fn": _identity} if batched else {}
    return DataLoader(
        dataset,
        job.batch,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
        **options,
    )


# --- FFCV, TurboLoader ----------------------------------------------------------------------------------


def _ffcv_prepare(job: Job) -> None:
    from ffcv.fields import IntField, NDArrayField
    from ffcv.writer import DatasetWriter

    target = job.folder / "records.beton"
    if target.exists():
        return

    class Indexed:
        def __len__(self) -> int:
            return job.count

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return np.array(job.records[index]), index % CLASSES

    _source(job)
    fields = {"x": NDArrayField(np.dtype("uint8"), (job.size,)), "y": IntField()}
    DatasetWriter(str(target), fields, num_workers=2).from_indexed_dataset(Indexed())


def _ffcv(job: Job) -> Iterable[Any]:
    from ffcv.fields.decoders import IntDecoder, NDArrayDecoder
    from ffcv.loader import Loader as FFCVLoader
    from ffcv.loader import OrderOption
    from ffcv.transforms import Squeeze, ToTensor

    loader: Iterable[Any] = FFCVLoader(
        str(job.folder / "records.beton"),
        batch_size=job.batch,
        num_workers=job.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"x": [NDArrayDecoder(), ToTensor()], "y": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return loader


def _turboloader(job: Job) -> Iterable[Any]:
    import turboloader

    loader: Iterable[Any] = turboloader.ArrayDataLoader(
        job.records, np.arange(job.count) % CLASSES, batch_size=job.batch, shuffle=True, drop_last=True
    )
    return loader


# --- WebDataset, MosaicML Streaming, LitData, Grain, Hugging Face datasets ------------------------------


def _webdataset_prepare(job: Job) -> None:
    import webdataset

    folder = job.folder / "webdataset"
    if folder.exists():
        return
    folder.mkdir()
    with webdataset.ShardWriter(f"{folder}/%05d.tar", maxsize=64e6, verbose=0) as writer:
        for i in range(job.count):
            writer.write({"__key__": f"{i:07d}", "x": job.records[i].tobytes(), "cls": i % CLASSES})


def _as_array(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _webdataset(job: Job) -> Iterable[Any]:
    import webdataset

    shards = sorted(str(path) for path in (job.folder / "webdataset").glob("*.tar"))
    dataset = webdataset.WebDataset(shards, shardshuffle=100, nodesplitter=webdataset.split_by_node)
    dataset = dataset.shuffle(1000).decode(webdataset.handle_extension("x", _as_array))
    loader: Iterable[Any] = webdataset.WebLoader(
        dataset.to_tuple("x", "cls").batched(job.batch, partial=False),
        batch_size=None,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )
    return loader


def _mds_prepare(job: Job) -> None:
    from streaming import MDSWriter

    folder = job.folder / "mds"
    if folder.exists():
        return
    with MDSWriter(out=str(folder), columns={"x": f"ndarray:uint8:{job.size}", "y": "int"}) as writer:
        for i in range(job.count):
            writer.write({"x": np.array(job.records[i]), "y": i % CLASSES})


def _mds(job: Job) -> Iterable[Any]:
    import streaming
    from torch.utils.data import DataLoader

    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(job.folder / "mds"), shuffle=True, batch_size=job.batch)
    return DataLoader(
        dataset, job.batch, num_workers=job.workers, drop_last=True, persistent_workers=job.workers > 0
    )


def _litdata_record(item: tuple[str, int]) -> dict[str, Any]:
    file, index = item
    return {"x": np.array(np.load(file, mmap_mode="r")[index]), "y": index % CLASSES}


def _litdata_prepare(job: Job) -> None:
    import litdata

    _source(job)
    folder = job.folder / "litdata"
    if not folder.exists():
        litdata.optimize(
            fn=_litdata_record,
            inputs=[(str(job.folder / "records.npy"), i) for i in range(job.count)],
            output_dir=str(folder),
            chunk_bytes="64MB",
            num_workers=2,
        )


def _litdata(job: Job) -> Iterable[Any]:
    import litdata

    dataset = litdata.StreamingDataset(str(job.folder / "litdata"), shuffle=True, drop_last=True)
    loader: Iterable[Any] = litdata.StreamingDataLoader(
        dataset, batch_size=job.batch, num_workers=job.workers, drop_last=True
    )
    return loader


def _grain_prepare(job: Job) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    target = job.folder / "records.array_record"
    if target.exists():
        return
    writer = ArrayRecordWriter(str(target), "group_size:1,uncompressed")
    for i in range(job.count):
        writer.write(job.records[i].tobytes())
    writer.close()


def _grain(job: Job) -> Iterable[Any]:
    import grain.python as grain

    class Parse(grain.MapTransform):  # type: ignore[misc]
        def map(self, element: bytes) -> npt.NDArray[np.uint8]:
            return _as_array(element)

    source = grain.ArrayRecordDataSource(str(job.folder / "records.array_record"))

    def iterate() -> Iterator[Any]:
        sampler = grain.IndexSampler(
            job.count, shuffle=True, seed=1, num_epochs=1, shard_options=grain.NoSharding()
        )
        loader = grain.DataLoader(
            data_source=source,
            sampler=sampler,
            operations=[Parse(), grain.Batch(job.batch, drop_remainder=True)],
            worker_count=job.workers,
        )
        iterator: Iterator[Any] = iter(loader)
        return iterator

    return Repeated(iterate)


def _numpy(job: Job) -> Iterable[Any]:
    records = job.records

    def iterate() -> Iterator[Any]:
        order = np.random.default_rng().permutation(job.count)
        for begin in range(0, job.count - job.batch + 1, job.batch):
            yield (records[order[begin : begin + job.batch]],)

    return Repeated(iterate)


LOADERS: dict[str, Loader] = {
    "fastload": Loader(_fastload, _fastload_prepare, "verify=first"),
    "torch": Loader(functools.partial(_torch, batched=False)),
    "torch-in-process": Loader(functools.partial(_torch, batched=False, in_process=True)),
    "torch-getitems": Loader(functools.partial(_torch, batched=True), settings="a batch in one __getitems__"),
    "ffcv": Loader(_ffcv, _ffcv_prepare),
    "turboloader": Loader(_turboloader, settings="one array in memory; no workers"),
    "numpy": Loader(_numpy, settings="indexing of one mapped array, one thread; no labels"),
    "webdataset": Loader(_webdataset, _webdataset_prepare),
    "mds": Loader(_mds, _mds_prepare),
    "litdata": Loader(_litdata, _litdata_prepare),
    "grain": Loader(_grain, _grain_prepare, "no labels"),
}
"""Every loader of the record job, by name."""
