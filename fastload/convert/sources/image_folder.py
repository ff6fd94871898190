"""A folder of images: ``root/class/…/x.jpg``, ``root/split/class/…/x.jpg``, or images alone.

Classes, their order, the order of files and the extensions are those of torchvision's ImageFolder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from fastload.convert.files import FileEntry, FileTree
from fastload.convert.source import (
    DEFAULT_SPLIT,
    RECORD_OVERHEAD,
    Concurrency,
    Partition,
    SourceItem,
    SourceOptions,
    are_splits,
    choose_split,
    cut,
    order_splits,
)
from fastload.errors import SourceError
from fastload.schema import Field, Image, Label, Schema, Str

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def is_image_name(name: str) -> bool:
    """Say whether a file's name has the extension of an image.

    >>> is_image_name("a.JPEG"), is_image_name("a.txt")
    (True, False)
    """
    return name.lower().endswith(EXTENSIONS)


@dataclasses.dataclass(frozen=True)
class ImagePartition:
    """Some files of one split. ``labels`` is empty where the images have no classes."""

    tree: FileTree
    prefix: str
    paths: tuple[str, ...]
    labels: tuple[int, ...]

    @property
    def records(self) -> int:
        return len(self.paths)

    def read(self) -> Iterator[SourceItem]:
        for number, path in enumerate(self.paths):
            full = self.prefix + path
            where = self.tree.where(full)
            try:
                data = self.tree.read(full)
            except SourceError as error:
                yield where, error
                continue
            record: dict[str, object] = {"image": data}
            if self.labels:
                record["label"] = self.labels[number]
            record["path"] = path
            yield where, record


class ImageFolderSource:
    """Images in class folders as a :class:`~fastload.convert.source.Source`.

    Fields: ``image`` (the file as it is), ``label`` (where there are class folders) and ``path`` (relative
    to the root of the split). Raises SourceError for a folder without images, classes that
    ``options.classes`` lacks, and splits of which only some have classes.
    """

    def __init__(self, tree: FileTree, options: SourceOptions) -> None:
        self._tree = tree
        self.notes: list[str] = []
        self.concurrency: Concurrency = tree.concurrency
        entries = tree.entries()
        top = tree.folders("")
        self._splits: dict[str, list[FileEntry]] = {}
        self._prefixes: dict[str, str] = {}
        if are_splits(top):
            for name in choose_split(order_splits(top), options.split, tree.url):
                self._prefixes[name] = f"{name}/"
        else:
            self._prefixes[options.split or DEFAULT_SPLIT] = ""
        ignored = 0
        for split, prefix in self._prefixes.items():
            inside = [
                FileEntry(entry.path[len(prefix) :], entry.size)
                for entry in entries
                if entry.path.startswith(prefix)
            ]
            images = [entry for entry in inside if is_image_name(entry.name)]
            ignored += len(inside) - len(images)
            if not images:
                raise SourceError(
                    "no images",
                    path=tree.where(prefix),
                    hint=f"files ending in {', '.join(EXTENSIONS)} are taken",
                )
            self._splits[split] = images
        self._drop_unclassed()
        if ignored:
            self.notes.append(f"{ignored} files that are no images by their name were left out")
        self._classes = self._choose_classes(options.classes)
        fields: dict[str, Field] = {"image": Image()}
        if self._classes is not None:
            fields["label"] = Label(self._classes)
        fields["path"] = Str()
        self.schema = Schema(fields)

    def _drop_unclassed(self) -> None:
        """Leave out images beside class folders, as torchvision does; refuse splits of both kinds."""
        classed = {
            split: any("/" in entry.path for entry in images) for split, images in self._splits.items()
        }
        if len(set(classed.values())) > 1:
            bare = ", ".join(split for split, has in classed.items() if not has)
            raise SourceError(
                f"split {bare} has images but no class folders, unlike the others",
                path=self._tree.url,
                hint="convert it alone, by its own path",
            )
        for split, images in self._splits.items():
            kept = [entry for entry in images if "/" in entry.path] if classed[split] else images
            if len(kept) < len(images):
                self.notes.append(f"{len(images) - len(kept)} images outside the class folders were left out")
            # As torchvision: classes in order, in each the folders in order, in each the names in order.
            kept.sort(
                key=lambda entry: (entry.path.partition("/")[0] if classed[split] else "", entry.folder)
            )
            self._splits[split] = kept

    def _choose_classes(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        images = [entry for split in self._splits.values() for entry in split]
        if "/" not in images[0].path:
            if wanted is not None:
                raise SourceError(
                    "classes were given, but the images are not in class folders", path=self._tree.url
                )
            return None
        found = {entry.path.partition("/")[0] for entry in images}
        folders = {name for prefix in self._prefixes.values() for name in self._tree.folders(prefix)}
        empty = sorted(folders - found)
        if empty:
            raise SourceError(
                f"{len(empty)} class folders hold no image: {', '.join(empty[:5])}",
                path=self._tree.url,
                hint="remove them, since every class folder takes a label",
            )
        if wanted is None:
            return tuple(sorted(found))
        unknown = sorted(found - set(wanted))
        if unknown:
            raise SourceError(
                f"{len(unknown)} class folders are not among the given classes: {', '.join(unknown[:5])}",
                path=self._tree.url,
            )
        return wanted

    def split_names(self) -> Sequence[str]:
        return list(self._splits)

    def partitions(self, split: str, shard_bytes: int) -> Sequence[Partition]:
        number = {name: index for index, name in enumerate(self._classes or ())}
        sized = (
            (entry.path, entry.size + RECORD_OVERHEAD + len(entry.path)) for entry in self._splits[split]
        )
        return [
            ImagePartition(
                self._tree,
                self._prefixes[split],
                tuple(paths),
                tuple(number[path.partition("/")[0]] for path in paths) if number else (),
            )
            for paths in cut(sized, shard_bytes)
        ]
