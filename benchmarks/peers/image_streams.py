"""Loaders of shards for the image job: WebDataset, MosaicML Streaming, LitData, Grain; Pillow decodes."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.image_job import BATCH, Files, Job, Repeated, torchvision_transform


def webdataset_prepare(job: Job) -> None:
    import webdataset

    folder = job.scratch / "webdataset"
    if folder.exists():
        return
    folder.mkdir()
    with webdataset.ShardWriter(f"{folder}/%05d.tar", maxsize=64e6, verbose=0) as writer:
        for i, file in enumerate(job.files):
            writer.write({"__key__": f"{i:07d}", "jpg": Path(file).read_bytes(), "cls": job.labels[i]})


def _identity(value: Any) -> Any:
    return value


def webdataset_loader(job: Job) -> Iterable[Any]:
    import webdataset

    shards = sorted(str(path) for path in (job.scratch / "webdataset").glob("*.tar"))
    dataset = webdataset.WebDataset(shards, shardshuffle=100, nodesplitter=webdataset.split_by_node)
    dataset = dataset.shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    dataset = dataset.map_tuple(torchvision_transform(job, from_pillow=True), _identity)
    loader: Iterable[Any] = webdataset.WebLoader(
        dataset.batched(BATCH, partial=False),
        batch_size=None,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )
    return loader


def mds_prepare(job: Job) -> None:
    from streaming import MDSWriter

    folder = job.scratch / "mds"
    if folder.exists():
        return
    with MDSWriter(out=str(folder), columns={"x": "bytes", "y": "int"}) as writer:
        for i, file in enumerate(job.files):
            writer.write({"x": Path(file).read_bytes(), "y": job.labels[i]})


def mds_loader(job: Job) -> Iterable[Any]:
    import streaming
    from PIL import Image
    from torch.utils.data import DataLoader

    streaming.base.util.clean_stale_shared_memory()
    transform = torchvision_transform(job, from_pillow=True)

    class Pictures(streaming.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: int) -> tuple[Any, int]:
            record = super().__getitem__(index)
            return transform(Image.open(io.BytesIO(record["x"])).convert("RGB")), record["y"]

    dataset = Pictures(local=str(job.scratch / "mds"), shuffle=True, batch_size=BATCH)
    return DataLoader(
        dataset, BATCH, num_workers=job.workers, drop_last=True, persistent_workers=job.workers > 0
    )


def _litdata_record(item: tuple[str, int]) -> dict[str, Any]:
    return {"x": Path(item[0]).read_bytes(), "y": item[1]}


def litdata_prepare(job: Job) -> None:
    import litdata

    folder = job.scratch / "litdata"
    if not folder.exists():
        litdata.optimize(
            fn=_litdata_record,
            inputs=list(zip(job.files, job.labels, strict=True)),
            output_dir=str(folder),
            chunk_bytes="64MB",
            num_workers=2,
        )


def litdata_loader(job: Job) -> Iterable[Any]:
    import litdata
    from PIL import Image

    transform = torchvision_transform(job, from_pillow=True)

    class Pictures(litdata.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> tuple[Any, int]:
            record = super().__getitem__(index)
            return transform(Image.open(io.BytesIO(record["x"])).convert("RGB")), record["y"]

    dataset = Pictures(str(job.scratch / "litdata"), shuffle=True, drop_last=True)
    loader: Iterable[Any] = litdata.StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=job.workers, drop_last=True
    )
    return loader


def grain_loader(job: Job) -> Iterable[Any]:
    import grain.python as grain

    pictures = Files(job, "pillow")

    class Source:
        def __len__(self) -> int:
            return len(pictures)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            image, label = pictures[index]
            return image.numpy(), label

    def iterate() -> Iterator[Any]:
        sampler = grain.IndexSampler(
            len(pictures),
            shuffle=True,
            seed=int(time.time()),
            num_epochs=1,
            shard_options=grain.NoSharding(),
        )
        loader = grain.DataLoader(
            data_source=Source(),
            sampler=sampler,
            operations=[grain.Batch(BATCH, drop_remainder=True)],
            worker_count=job.workers,
        )
        iterator: Iterator[Any] = iter(loader)
        return iterator

    return Repeated(iterate)
