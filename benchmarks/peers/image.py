"""Loaders for the image job: RandomResizedCrop(224) and a horizontal flip of JPEGs, in batches of 128.

Or, for evaluation, Resize(256) of the shorter side and CenterCrop(224), in order. Each is set up as its own
documentation recommends, with the same number of workers. uint8 batches unless ``Job.f32``, then float32
normalised with ImageNet's mean and deviation.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from benchmarks.peers import image_streams as streams
from benchmarks.peers.image_fastload import LOADERS as FASTLOAD
from benchmarks.peers.image_job import (
    BATCH,
    MEAN,
    RESIZED,
    SIZE,
    STD,
    Files,
    Job,
    Loader,
    MadeAtFirst,
    Repeated,
    crop_box,
)


def _torch(job: Job, decoder: str, context: str | None = None) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    dataset: Any = Files(job, decoder)
    return DataLoader(dataset, multiprocessing_context=context, **_arguments(job))


def _with_one_more(job: Job) -> Job:
    """Return the job with a worker that works while others wait for the GIL."""
    return dataclasses.replace(job, workers=job.workers + 1)


def _arguments(job: Job) -> dict[str, Any]:
    return {
        "batch_size": BATCH,
        "shuffle": not job.evaluation,
        "num_workers": job.workers,
        "drop_last": not job.evaluation,
        "persistent_workers": job.workers > 0,
    }


def _fastload(job: Job, method: Literal["multiprocessing", "thread"]) -> Iterable[Any]:
    """fastload with the dataset that torch has: Pillow decodes."""
    import fastload

    return fastload.DataLoader(Files(job, "pillow"), worker_method=method, **_arguments(job))  # type: ignore[arg-type]


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
    from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader as FFCVLoader
    from ffcv.loader import OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
    if job.evaluation:
        image = [CenterCropRGBImageDecoder((SIZE, SIZE), SIZE / RESIZED)]
    if job.f32:
        image.append(NormalizeImage(np.array(MEAN) * 255, np.array(STD) * 255, np.float32))
    image += [ToTensor(), ToTorchImage()]
    loader: Iterable[Any] = FFCVLoader(
        str(job.scratch / ("raw.beton" if raw else "jpeg.beton")),
        batch_size=BATCH,
        num_workers=job.workers,
        order=OrderOption.SEQUENTIAL if job.evaluation else OrderOption.RANDOM,
        os_cache=True,
        drop_last=not job.evaluation,
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
            files=job.files,
            labels=job.labels,
            random_shuffle=not job.evaluation,
            name="reader",
            initial_fill=1000,
        )
        how: dict[str, Any] = {"antialias": True, "interp_type": types.INTERP_LINEAR}
        if job.evaluation:
            images = fn.decoders.image(jpegs, device="cpu", output_type=types.RGB)
            images = fn.resize(images, resize_shorter=RESIZED, **how)
        else:
            images = fn.decoders.image_random_crop(
                jpegs,
                device="cpu",
                output_type=types.RGB,
                random_aspect_ratio=[3 / 4, 4 / 3],
                random_area=[0.08, 1.0],
            )
            images = fn.resize(images, size=[SIZE, SIZE], **how)
        options: dict[str, Any] = {"dtype": types.UINT8}
        if job.f32:
            options = {
                "dtype": types.FLOAT,
                "mean": [255 * value for value in MEAN],
                "std": [255 * value for value in STD],
            }
        options["mirror"] = 0 if job.evaluation else fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, crop=[SIZE, SIZE], output_layout="CHW", **options), labels

    def make() -> Iterable[Any]:
        built = pipeline()
        built.build()
        loader: Iterable[Any] = DALIGenericIterator(
            [built],
            ["image", "label"],
            reader_name="reader",
            last_batch_policy=LastBatchPolicy.PARTIAL if job.evaluation else LastBatchPolicy.DROP,
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


def _spdl(job: Job) -> Iterable[Any]:
    import numpy as np
    import spdl.io
    import spdl.pipeline
    import torch

    draw = random.Random(0)

    def decode(index: int) -> tuple[Any, int]:
        packets = spdl.io.demux_image(job.files[index])
        left, top, width, height = crop_box(packets.codec.width, packets.codec.height, draw)
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


LOADERS: dict[str, Loader] = {
    **FASTLOAD,
    "fastload-processes": Loader(
        lambda job: _fastload(job, "multiprocessing"), settings="the Python dataset of torch-pillow"
    ),
    "fastload-threads": Loader(
        lambda job: _fastload(job, "thread"), settings="the Python dataset of torch-pillow"
    ),
    "fastload-threads+1": Loader(
        lambda job: _fastload(_with_one_more(job), "thread"), settings="the same with one worker more"
    ),
    "torch-pillow": Loader(lambda job: _torch(job, "pillow")),
    "torch-pillow+1": Loader(
        lambda job: _torch(_with_one_more(job), "pillow"), settings="torch-pillow with one worker more"
    ),
    "torch-pillow-forkserver": Loader(
        lambda job: _torch(job, "pillow", "forkserver"), settings="how Python 3.14 starts processes"
    ),
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
    "webdataset": Loader(streams.webdataset_loader, streams.webdataset_prepare),
    "mds": Loader(streams.mds_loader, streams.mds_prepare),
    "litdata": Loader(streams.litdata_loader, streams.litdata_prepare),
    "grain": Loader(streams.grain_loader),
}
"""Every loader of the image job, by name."""
