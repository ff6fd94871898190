"""What fastload is compared with: torch's DataLoader over the same records, kept as its users keep them."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastload.format import SplitReader
from fastload.schema import Image, Label, Scalar, Tensor

COLUMNS = (Label, Scalar, Tensor)


@dataclasses.dataclass(frozen=True)
class PeerData:
    """Records as torch's users have them: image files, .npy arrays, or the shards themselves (``kind``)."""

    kind: str
    folder: str
    files: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    arrays: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """What is compared with, in words."""
        return {
            "images": "torch DataLoader over the image files",
            "arrays": "torch DataLoader over mapped .npy arrays",
            "shards": "torch DataLoader over the shards, read in Python",
        }[self.kind]


def prepare(reader: SplitReader, records: int, folder: Path) -> PeerData:
    """Write the first ``records`` to ``folder`` as torch's users keep such data. Raises OSError."""
    schema = reader.schema
    images = [name for name, field in schema.items() if isinstance(field, Image)]
    if images:
        labels = [name for name, field in schema.items() if isinstance(field, Label)]
        files: list[str] = []
        numbers: list[int] = []
        for record in range(records):
            data = reader.value(record, images[0])
            file = folder / f"{record:08d}"
            file.write_bytes(data)
            files.append(str(file))
            numbers.append(int(reader.value(record, labels[0]) or 0) if labels else 0)
        return PeerData("images", str(folder), tuple(files), tuple(numbers))
    if all(isinstance(field, COLUMNS) and not field.nullable for field in schema.values()):
        arrays: list[tuple[str, str]] = []
        for number, (name, field) in enumerate(schema.items()):
            assert isinstance(field, COLUMNS)
            file = folder / f"{number}.npy"
            shape = (records, *field.item_shape)
            array = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(field.numpy_dtype), shape=shape)
            for record in range(records):
                array[record] = reader.value(record, name)
            array.flush()
            arrays.append((name, str(file)))
        return PeerData("arrays", str(folder), arrays=tuple(arrays))
    return PeerData("shards", str(folder))


class ImageFiles:
    """Image files decoded by Pillow, cropped at random to ``size`` and flipped: torchvision's usual recipe.

    torchvision itself is used where it is installed, else the same steps with Pillow alone.
    """

    def __init__(self, files: Sequence[str], labels: Sequence[int], size: int) -> None:
        self._files, self._labels, self._size = files, labels, size
        self._transform: Any = None
        try:
            from torchvision.transforms import v2
        except ImportError:
            return
        self._transform = v2.Compose(
            [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
        )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image as PillowImage

        with PillowImage.open(self._files[index]) as file:
            image = file.convert("RGB")
        made = self._transform(image) if self._transform is not None else self._crop(image)
        return made, self._labels[index]

    def _crop(self, image: Any) -> Any:
        import torch
        from PIL import Image as PillowImage

        area = image.width * image.height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width = min(image.width, max(1, round(math.sqrt(area * ratio))))
        height = min(image.height, max(1, round(math.sqrt(area / ratio))))
        left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
        box = (left, top, left + width, top + height)
        small = image.resize((self._size, self._size), PillowImage.Resampling.BILINEAR, box=box)
        if random.random() < 0.5:
            small = small.transpose(PillowImage.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).contiguous()


class ArrayRows:
    """Rows of mapped .npy arrays."""

    def __init__(self, arrays: Sequence[tuple[str, str]]) -> None:
        self._names = arrays
        self._arrays: dict[str, Any] | None = None

    def _open(self) -> dict[str, Any]:
        if self._arrays is None:
            self._arrays = {name: np.load(file, mmap_mode="r") for name, file in self._names}
        return self._arrays

    def __len__(self) -> int:
        return len(next(iter(self._open().values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: np.array(array[index]) for name, array in self._open().items()}


class ShardRows:
    """Values of records, read from the shards in Python."""

    def __init__(self, reader: SplitReader, records: int) -> None:
        self._reader, self._records = reader, records

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: self._reader.value(index, name) for name in self._reader.schema}


def torch_loader(
    data: PeerData, reader: SplitReader, records: int, *, batch_size: int, workers: int, size: int
) -> Any:
    """Return torch's DataLoader over the records, shuffled, with workers that persist."""
    from torch.utils.data import DataLoader

    dataset: Any
    if data.kind == "images":
        dataset = ImageFiles(data.files, data.labels, size)
    elif data.kind == "arrays":
        dataset = ArrayRows(data.arrays)
    else:
        dataset = ShardRows(reader, records)
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
        collate_fn=list if data.kind == "shards" else None,
    )
