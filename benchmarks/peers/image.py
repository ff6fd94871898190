"""Loaders for the image job: RandomResizedCrop(224) and a horizontal flip of JPEGs, in batches of 128.

Each is set up as its own documentation recommends, with the same number of workers. uint8 batches unless
``Job.f32``, then float32 normalised with ImageNet's mean and deviation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import io
import math
import random
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

BATCH = 128
SIZE = 224
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be loaded: JPEGs in class folders whose names are integers."""

    images: Path
    scratch: Path
    f32: bool
    workers: int

    @functools.cached_property
    def files(self) -> list[str]:
        """Paths of all images, in order."""
        return sorted(str(path) for path in self.images.glob("*/*.jpg"))

    @functools.cached_property
    def labels(self) -> list[int]:
        """The class of each image."""
        return [int(Path(file).parent.name) for file in self.files]


def _nothing(job: Job) -> None:
    """A loader that reads the images as they are."""


@dataclasses.dataclass(frozen=True)
class Loader:
    """How a loader is made. ``settings`` says what a reader of figures should know."""

    make: Callable[[Job], Iterable[Any]]
    prepare: Callable[[Job], None] = _nothing
    settings: str = ""


class MadeAtFirst:
    """Makes a loader when it is first iterated over, for one that begins to work as soon as it is made.

    Otherwise its first batch would seem to take no time.
    """

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make
        self._made: Iterable[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._made is None:
            self._made = self._make()
        return iter(self._made)


class Repeated:
    """Makes the iterable anew for every epoch."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


class PillowTransform:
    """The job's transforms with Pillow and torch alone, where torchvision is not installed."""

    def __init__(self, job: Job) -> None:
        self._f32 = job.f32

    def __call__(self, image: Any) -> Any:
        import numpy as np
        import torch
        from PIL import Image

        left, top, width, height = _crop_box(image.width, image.height, random)
        box = (left, top, left + width, top + height)
        small = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        if random.random() < 0.5:
            small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1).contiguous()
        if not self._f32:
            return pixels
        mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
        return (pixels.float() / 255 - mean) / std


def _torchvision_transform(job: Job, *, from_pillow: bool) -> Any:
    import torch
    from torchvision.transforms import v2

    steps: list[Any] = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
    if from_pillow:
        steps.append(v2.PILToTensor())
    if job.f32:
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose(steps)


class Files:
    """A map-style dataset of the image files. ``decoder`` is ``"pillow"`` or ``"torchvision"``."""

    def __init__(self, job: Job, decoder: str) -> None:
        self.files, self.labels = job.files, job.labels
        self.decoder = decoder
        if decoder == "pillow" and importlib.util.find_spec("torchvision") is None:
            self.transform: Any = PillowTransform(job)
        else:
            self.transform = _torchvision_transform(job, from_pillow=decoder == "pillow")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image: Any
        if self.decoder == "pillow":
            from PIL import Image

            image = Image.open(self.files[index]).convert("RGB")
        else:
            from torchvision.io import ImageReadMode, decode_jpeg, read_file

            image = decode_jpeg(read_file(self.files[index]), ImageReadMode.RGB)
        return self.transform(image), self.labels[index]


def _torch(job: Job, decoder: str) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(
        Files(job, decoder),  # type: ignore[arg-type]
        batch_size=BATCH,
        shuffle=True,
        num_workers=job.workers,
        drop_last=True,
        persistent_workers=job.workers > 0,
    )


# --- fastload -------------------------------------------------------------------------------------------


def _fastload_prepare(job: Job) -> None:
    from fastload.cli import main

    target = job.scratch / "images.fl"
    if not target.exists():
        with contextlib.suppress(SystemExit):
            main(["convert", str(job.images), str(target)])
        if not target.exists():
            raise SystemExit("the images could not be converted")


def _fastload(job: Job) -> Iterable[Any]:
    import torch

    import fastload
    from fastload import transforms as T

    operations: list[Any] = [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()]
    if job.f32:
        operations += [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    dataset = fastload.open(str(job.scratch / "images.fl")).transform(image=operations)
    return fastload.DataLoader(
        dataset.as_tuple("image", "label"),
        batch_size=BATCH,
        shuffle=True,
        num_workers=job.workers,
        drop_last=True,
    )


# --- FFCV -----------------------------------------------------------------------------------------------


def _ffcv_prepare(job: Job, *, raw: bool) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from PIL import Image

    target = job.scratch / ("raw.beton" if raw else "jpeg.beton")
    if target.exists():
        return

    class Pictures:
        def __len__(self) -> int:
            return len(job.files)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return Image.open(job.files[index]).convert("RGB"), job.labels[index]

    image = (
        RGBImageField(write_mode="raw", max_resolution=256)
        if raw
        else RGBImageField(write_mode="jpg", jpeg_quality=90)
    )
    writer = DatasetWriter(str(target), {"image": image, "label": IntField()}, num_workers=2)
    writer.from_indexed_dataset(Pictures())


def _ffcv(job: Job, *, raw: bool) -> Iterable[Any]:
    import numpy as np
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader as FFCVLoader
    from ffcv.loader import OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
    if job.f32:
        image.append(NormalizeImage(np.array(MEAN) * 255, np.array(STD) * 255, np.float32))
    image += [ToTensor(), ToTorchImage()]
    loader: Iterable[Any] = FFCVLoader(
        str(job.scratch / ("raw.beton" if raw else "jpeg.beton")),
        batch_size=BATCH,
        num_workers=job.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return loader


# --- DALI -----------------------------------------------------------------------------------------------


def _dali(job: Job) -> Iterable[Any]:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=BATCH, num_threads=job.workers, device_id=None, prefetch_queue_depth=2
    )
    def pipeline() -> Any:
        jpegs, labels = fn.readers.file(
            files=job.files, labels=job.labels, random_shuffle=True, name="reader", initial_fill=1000
        )
        images = fn.decoders.image_random_crop(
            jpegs,
            device="cpu",
            output_type=types.RGB,
            random_aspect_ratio=[3 / 4, 4 / 3],
            random_area=[0.08, 1.0],
        )
        images = fn.resize(images, size=[SIZE, SIZE], antialias=True, interp_type=types.INTERP_LINEAR)
        options: dict[str, Any] = {"dtype": types.UINT8}
        if job.f32:
            options = {
                "dtype": types.FLOAT,
                "mean": [255 * value for value in MEAN],
                "std": [255 * value for value in STD],
            }
        flip = fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, output_layout="CHW", mirror=flip, **options), labels

    def make() -> Iterable[Any]:
        built = pipeline()
        built.build()
        loader: Iterable[Any] = DALIGenericIterator(
            [built],
            ["image", "label"],
            reader_name="reader",
            last_batch_policy=LastBatchPolicy.DROP,
            auto_reset=True,
        )
        return loader

    return MadeAtFirst(make)


# --- TurboLoader ----------------------------------------------------------------------------------------


def _turboloader_prepare(job: Job, *, raw: bool) -> None:
    target = job.scratch / "images.tar"
    if not target.exists():
        with tarfile.open(target, "w") as tar:
            for i, file in enumerate(job.files):
                tar.add(file, f"{i:07d}.jpg")
    if raw and not (job.scratch / "images-256.tbl").exists():
        import turboloader

        turboloader.preprocess_to_tbl(
            str(target), str(job.scratch / "images-256.tbl"), image_size=256, num_workers=2
        )


def _turboloader(job: Job, *, raw: bool) -> Iterable[Any]:
    import turboloader

    loader = turboloader.DataLoader(
        str(job.scratch / ("images-256.tbl" if raw else "images.tar")),
        batch_size=BATCH,
        num_workers=job.workers,
        shuffle=True,
        image_size=SIZE,
        train_aug=True,
        output_format="pytorch",
        transform=turboloader.ImageNetNormalize() if job.f32 else None,
        drop_last=True,
    )
    epoch = 0

    def iterate() -> Iterator[Any]:
        nonlocal epoch
        loader.set_epoch(epoch)
        epoch += 1
        return iter(loader)

    return Repeated(iterate)


# --- SPDL -----------------------------------------------------------------------------------------------


def _crop_box(width: int, height: int, draw: Any) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a random resized crop; ``draw`` is ``random`` or a Random."""
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            return (
                draw.randint(0, width - crop_width),
                draw.randint(0, height - crop_height),
                crop_width,
                crop_height,
            )
    return 0, 0, width, height


def _spdl(job: Job) -> Iterable[Any]:
    import numpy as np
    import spdl.io
    import spdl.pipeline
    import torch

    draw = random.Random(0)

    def decode(index: int) -> tuple[Any, int]:
        packets = spdl.io.demux_image(job.files[index])
        left, top, width, height = _crop_box(packets.codec.width, packets.codec.height, draw)
        flip = ",hflip" if draw.random() < 0.5 else ""
        filters = f"crop={width}:{height}:{left}:{top}{flip},scale={SIZE}:{SIZE}:flags=bilinear,"
        filters += "format=pix_fmts=rgb24"
        return spdl.io.decode_packets(packets, filter_desc=filters), job.labels[index]

    def collate(items: list[tuple[Any, int]]) -> tuple[Any, Any]:
        buffer = spdl.io.convert_frames([frames for frames, _ in items])
        return spdl.io.to_torch(buffer), torch.tensor([label for _, label in items])

    def iterate() -> Iterator[Any]:
        order = np.random.permutation(len(job.files)).tolist()
        builder = spdl.pipeline.PipelineBuilder().add_source(order).pipe(decode, concurrency=job.workers)
        built = (
            builder.aggregate(BATCH, drop_last=True)
            .pipe(collate)
            .add_sink(3)
            .build(num_threads=job.workers + 1)
        )
        with built.auto_stop():
            yield from built.get_iterator()

    return Repeated(iterate)


# --- WebDataset, MosaicML Streaming, LitData, Grain -----------------------------------------------------


def _webdataset_prepare(job: Job) -> None:
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


def _webdataset(job: Job) -> Iterable[Any]:
    import webdataset

    shards = sorted(str(path) for path in (job.scratch / "webdataset").glob("*.tar"))
    dataset = webdataset.WebDataset(shards, shardshuffle=100, nodesplitter=webdataset.split_by_node)
    dataset = dataset.shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    dataset = dataset.map_tuple(_torchvision_transform(job, from_pillow=True), _identity)
    loader: Iterable[Any] = webdataset.WebLoader(
        dataset.batched(BATCH, partial=False),
        batch_size=None,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
    )
    return loader


def _mds_prepare(job: Job) -> None:
    from streaming import MDSWriter

    folder = job.scratch / "mds"
    if folder.exists():
        return
    with MDSWriter(out=str(folder), columns={"x": "bytes", "y": "int"}) as writer:
        for i, file in enumerate(job.files):
            writer.write({"x": Path(file).read_bytes(), "y": job.labels[i]})


def _mds(job: Job) -> Iterable[Any]:
    import streaming
    from PIL import Image
    from torch.utils.data import DataLoader

    streaming.base.util.clean_stale_shared_memory()
    transform = _torchvision_transform(job, from_pillow=True)

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


def _litdata_prepare(job: Job) -> None:
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


def _litdata(job: Job) -> Iterable[Any]:
    import litdata
    from PIL import Image

    transform = _torchvision_transform(job, from_pillow=True)

    class Pictures(litdata.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> tuple[Any, int]:
            record = super().__getitem__(index)
            return transform(Image.open(io.BytesIO(record["x"])).convert("RGB")), record["y"]

    dataset = Pictures(str(job.scratch / "litdata"), shuffle=True, drop_last=True)
    loader: Iterable[Any] = litdata.StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=job.workers, drop_last=True
    )
    return loader


def _grain(job: Job) -> Iterable[Any]:
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


LOADERS: dict[str, Loader] = {
    "fastload": Loader(
        _fastload, _fastload_prepare, "verify=first, exact decoding, the JPEG files as they are"
    ),
    "torch-pillow": Loader(lambda job: _torch(job, "pillow")),
    "torch-tvio": Loader(lambda job: _torch(job, "torchvision")),
    "ffcv": Loader(
        functools.partial(_ffcv, raw=False),
        functools.partial(_ffcv_prepare, raw=False),
        "images encoded anew as JPEG of quality 90",
    ),
    "ffcv-raw": Loader(
        functools.partial(_ffcv, raw=True),
        functools.partial(_ffcv_prepare, raw=True),
        "raw pixels, 256 at most",
    ),
    "dali": Loader(_dali, settings="on the CPU"),
    "turboloader": Loader(
        functools.partial(_turboloader, raw=False),
        functools.partial(_turboloader_prepare, raw=False),
        "float32 always: it has no uint8 output",
    ),
    "turboloader-raw": Loader(
        functools.partial(_turboloader, raw=True),
        functools.partial(_turboloader_prepare, raw=True),
        "raw pixels of 256, float32 always",
    ),
    "spdl": Loader(_spdl, settings="uint8 always"),
    "webdataset": Loader(_webdataset, _webdataset_prepare),
    "mds": Loader(_mds, _mds_prepare),
    "litdata": Loader(_litdata, _litdata_prepare),
    "grain": Loader(_grain),
}
"""Every loader of the image job, by name."""
