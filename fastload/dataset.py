"""What a user opens: records by index, views of them, and what they are turned into."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fastload.engine.look import NO_PROGRAM, Look
from fastload.engine.plan import BatchIndices, Engine, OnError, Plan
from fastload.engine.transform import transformed
from fastload.errors import UsageError
from fastload.format import Manifest, SplitReader, parse_size
from fastload.format.manifest import fingerprint_of
from fastload.sampling import ENDLESS, Mixture, Records, Selection, Weighted, Window
from fastload.schema import Field, Image, Label, Ragged, Schema
from fastload.storage import open_storage
from fastload.transforms import Call
from fastload.views import Views

if TYPE_CHECKING:
    from PIL import Image as PillowImage

    # What torch's own classes and functions are declared to take; any object with a length and items does.
    from torch.utils.data import Dataset as _TorchDataset

    from fastload.display import Explanation

    _Base = _TorchDataset[Any]
else:
    _Base = object

__all__ = ["Dataset", "Look", "open_dataset"]


class Dataset(Views, _Base):  # type: ignore[misc]  # torch's + makes a ConcatDataset
    """Records of a fastload dataset, or a view of some of them. Made by :func:`fastload.open`.

    ``ds[i]`` is one sample: a dict of its fields (a tuple after :meth:`as_tuple`). Images are decoded:
    uint8 (C, H, W), or what :meth:`transform` says. Fields are torch tensors, or NumPy values after
    ``with_format("numpy")``: tensor and ragged fields arrays, scalars 0-d tensors (NumPy scalars) of their
    dtype; labels are ints, as ImageFolder gives them; bytes, str, lists of str and JSON are Python's.
    Null is None.

    Slices, lists of indices, :meth:`take` and ``+`` give views, which compose as Python lists do and copy
    no data; docs/mixing.md has more views. Datasets pickle, and reopen their files in the process that uses
    them.

    Random transforms draw by a key from torch's generator (Python's where torch is not loaded), so that
    they differ between epochs under any loader; fastload's own DataLoader keys them by its seed, and
    :meth:`sample` reproduces one.
    """

    def __init__(
        self, sources: Sequence[SplitReader], selection: Records, look: Look, metadata: Mapping[str, Any]
    ) -> None:
        self.sources = tuple(sources)
        self.selection = selection
        self.look = look
        self.metadata = dict(metadata)
        self._sample_plan = self.plan(samples=True)
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        made_anew = ("_local", "schema")
        return {key: value for key, value in self.__dict__.items() if key not in made_anew}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def _with(
        self,
        *,
        sources: Sequence[SplitReader] | None = None,
        selection: Records | None = None,
        look: Look | None = None,
    ) -> Dataset:
        return Dataset(
            self.sources if sources is None else sources,
            self.selection if selection is None else selection,
            self.look if look is None else look,
            self.metadata,
        )

    # --- what it is ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.selection)

    @functools.cached_property
    def schema(self) -> Schema:
        """The fields of a record that samples have, in their order, as stored."""
        stored = self.sources[0].schema
        return Schema({name: stored[self.look.stored(name)] for name in self.look.columns})

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names of the label field. Raises UsageError unless there is exactly one."""
        labels = {name: field for name, field in self.schema.items() if isinstance(field, Label)}
        if len(labels) != 1:
            found = ", ".join(labels) if labels else "none"
            raise UsageError(
                f"classes belong to one Label field, and the dataset has {found}",
                hint="ask the field: ds.schema[name].classes" if labels else None,
            )
        (label,) = labels.values()
        return label.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label's index by class name, as torchvision's ImageFolder has it."""
        return {name: index for index, name in enumerate(self.classes)}

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that name the records and their order: schema, contents, view."""
        parts = [fingerprint_of(source.schema, {source.name: source.table}) for source in self.sources]
        text = " ".join([*parts, self.selection.digest().hex()])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __repr__(self) -> str:
        container = "tuples" if self.look.tuples else "dicts"
        kind = "torch tensors" if self.look.format == "torch" else "NumPy arrays"
        fields = [f"  {name}: {text}" for name, text in self._described()]
        maps = [f"  {text}" for text in self.look.maps_named()]
        return "\n".join([self._title(), *fields, *maps, f"  as {container} of {kind}"])

    def _title(self) -> str:
        places = list(dict.fromkeys(f"{source.folder} [{source.name}]" for source in self.sources))
        more = [f"{len(places) - 8:,} more"] if len(places) > 8 else []
        records = self.selection
        count = "endless" if records.count >= ENDLESS else f"{records.count:,}"
        title = f"Dataset of {count} records from {', '.join(places[:8] + more)}"
        return f"{title}: {records.describe()}" if isinstance(records, (Mixture, Weighted)) else title

    def _described(self) -> list[tuple[str, str]]:
        """Return each field's name, and its type and operations."""
        programs = dict(self.look.programs)
        return [
            (name, " -> ".join([_describe(field), *map(repr, programs.get(name, NO_PROGRAM).operations)]))
            for name, field in self.schema.items()
        ]

    # --- a look at it ----------------------------------------------------------------------------------

    def _repr_html_(self) -> str:
        from fastload.display import describe_html

        first = self.selection.locate(np.arange(min(self.selection.count, 4)))
        return describe_html(self._title(), self._described(), self._sample_plan, *first)

    def show(
        self, count: int = 16, path: str | os.PathLike[str] | None = None, *, seed: int = 0, epoch: int = 0
    ) -> PillowImage.Image:
        """Return the images of the first ``count`` samples as one picture, which a notebook shows.

        They are transformed as in epoch ``epoch`` of ``DataLoader(ds, seed=seed)``, unshuffled, before any
        :meth:`map`, with normalising undone; each has its index, labels and texts below. ``path`` is a file
        to write it to.
        Raises UsageError where there is no image.
        """
        from fastload.display import show

        first = self.selection.locate(np.arange(min(self.selection.count, count)))
        return show(self.plan(seed=seed, samples=True), *first, epoch=epoch, path=path)

    def explain(
        self, index: int, *, seed: int = 0, epoch: int = 0, position: int | None = None
    ) -> Explanation:
        """Return what becomes of sample ``index``: bytes read, and draws, shape and time of each operation.

        Printing it gives a table; what :meth:`map` takes is in the total alone. ``seed``, ``epoch`` and
        ``position`` are as in :meth:`sample`.
        """
        from fastload.display import explain

        entry = self._entry(index)
        source, record = (int(numbers[0]) for numbers in self.selection.locate(np.array([entry])))
        place = entry if position is None else position
        return explain(self.plan(seed=seed, samples=True), source, record, position=place, epoch=epoch)

    # --- what samples look like ------------------------------------------------------------------------

    def _check_names(self, names: Sequence[str], *, among: Sequence[str] | None = None) -> None:
        known = self.look.columns if among is None else among
        for name in names:
            if name not in known:
                raise UsageError(f"there is no field {name!r}", hint=f"the fields are: {', '.join(known)}")
        if len(set(names)) != len(names) or not names:
            raise UsageError(f"name each field once, and at least one, not {list(names)!r}")

    def select_columns(self, names: str | Sequence[str]) -> Dataset:
        """Return a view whose samples have only the named fields, in that order; no others are read."""
        columns = (names,) if isinstance(names, str) else tuple(names)
        if self.look.maps or self.look.batch_maps:  # which fields those make shows when they run
            return self._with(look=dataclasses.replace(self.look, picked=columns))
        self._check_names(columns)
        return self._with(look=dataclasses.replace(self.look, columns=columns))

    def as_tuple(self, *names: str) -> Dataset:
        """Return a view whose samples and batches are tuples of the named fields, of all if none is named."""
        chosen = self.select_columns(names) if names else self
        return chosen._with(look=dataclasses.replace(chosen.look, tuples=True))

    def with_format(self, format: Literal["torch", "numpy"]) -> Dataset:
        """Return a view that gives torch tensors, or NumPy arrays without importing torch."""
        if format not in ("torch", "numpy"):
            raise UsageError(f"unknown format {format!r}", hint="use 'torch' or 'numpy'")
        return self._with(look=dataclasses.replace(self.look, format=format))

    def with_ragged(self, **modes: str) -> Dataset:
        """Return a view that says how batches join ragged fields: ``with_ragged(tokens="pad")``.

        ``"list"`` (the default) gives a list of arrays, ``"pad"`` one array padded with zeros,
        ``"jagged"`` all values in one array, with offsets (fastload.staging.JaggedTensor in torch).
        """
        self._check_names(list(modes))
        for name, mode in modes.items():
            field = self.schema[name]
            if mode not in ("list", "pad", "jagged"):
                raise UsageError(f"unknown ragged mode {mode!r}", hint="use 'list', 'pad' or 'jagged'")
            if not isinstance(field, Ragged) or (mode != "list" and field.nullable):
                raise UsageError(
                    f"field {name!r} is {field!r}", hint="with_ragged is for Ragged fields without null"
                )
            if mode == "jagged" and field.free_dimensions != (0,):
                raise UsageError(
                    f"field {name!r} is {field!r}", hint="jagged needs the first dimension alone free"
                )
        ragged = {**dict(self.look.ragged), **modes}
        return self._with(look=dataclasses.replace(self.look, ragged=tuple(ragged.items())))

    def transform(
        self, fields: Mapping[str | tuple[str, ...], Any] | None = None, /, **named: Any
    ) -> Dataset:
        """Return a view that transforms the named fields: ``ds.transform(image=[T.Resize(256), …])``.

        A field takes an operation of :mod:`fastload.transforms`, a torchvision v2 transform or Compose, any
        callable, or a list of these; they come behind those it has. None removes them. What is known runs
        natively, callables in Python: on image fields they get what torchvision's would, on others the
        value as NumPy has it.

        ``ds.transform({("image", "mask", "boxes"): […]})`` draws once for several fields: masks move with
        the first image, nearest, and boxes as well (docs/dataloader.md). ``T.MultiView`` makes several views
        of a field. Raises UsageError for operations that do not fit the field.
        """
        entries: dict[Any, Any] = {**(fields or {}), **named}
        for name in entries:
            self._check_names(list(name) if isinstance(name, tuple) else [name])
        if self.look.maps:
            raise UsageError("transforms come before map", hint="call transform() first, then map()")
        return self._with(look=transformed(self.look, self.sources[0].schema, entries))

    def map(self, function: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Dataset:
        """Return a view whose samples ``function`` has been called with: a dict, as ``ds[i]`` has it.

        It returns a dict of what the sample holds then: fields may come, go and change. Several functions
        are called in the order given, all after the transforms. In a DataLoader they run on its threads,
        while everything before them is made natively.

        Random numbers that the function takes from torch, NumPy or ``random`` are seeded for the sample,
        which lets only one such function run at a time. One with a parameter ``generator`` gets a
        ``numpy.random.Generator`` of the sample by that name instead, and runs on all threads at once.

        A function that meets a sample it does not want raises errors.RecordError: the DataLoader's
        ``on_error`` says what becomes of it.
        """
        return self._with(look=dataclasses.replace(self.look, maps=(*self.look.maps, Call(function))))

    def map_batches(self, function: Callable[[dict[str, Any]], Any]) -> Dataset:
        """Return a view whose batches ``function`` has been called with, in the thread that asks for them.

        It gets the batch as a dict of fields, may change it, and returns what the batch becomes, a dict:
        ``ds.map_batches(T.MixUp(num_classes=1000))``. Random numbers are seeded as for :meth:`map`, for
        the batch. Only fastload's DataLoader makes batches: ``ds[i]`` and other loaders don't call it.
        """
        calls = (*self.look.batch_maps, Call(function))
        return self._with(look=dataclasses.replace(self.look, batch_maps=calls))

    # --- samples ---------------------------------------------------------------------------------------

    def plan(self, *, seed: int = 0, samples: bool = False, on_error: OnError = "raise") -> Plan:
        """Return what an engine needs to make batches (or single ``samples``) of this dataset."""
        plan = self.look.plan(self.sources[0].schema, self.sources, samples=samples)
        return dataclasses.replace(plan, seed=seed, on_error=on_error, selection=self.selection)

    def window(self, size: int | str) -> Window:
        """Return the shuffle window of ``size`` bytes (an integer, or text like ``"512MB"``) over it.

        What it is depends on the dataset and the size alone, never on how many ranks read.
        """
        tables = [source.table for source in self.sources]
        chunks = self.selection.chunks([table.starts.astype(np.int64) for table in tables])
        means = [table.total_bytes / max(1, table.records) for table in tables]
        counts = self.selection.source_counts(len(tables))
        mean = float(counts @ np.array(means)) / max(1, int(counts.sum()))
        return Window.resolve(parse_size(size), chunks, count=self.selection.span, record_bytes=mean)

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.selection.count):
            yield self[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at ``indices``: what torch's DataLoader calls for a whole batch."""
        return self._samples(self.selection.normalise(indices))

    def sample(self, index: int, *, seed: int = 0, epoch: int = 0, position: int | None = None) -> Any:
        """Return sample ``index`` with its random draws keyed as fastload's DataLoader keys them.

        ``position`` is the sample's place in the epoch's order, by default ``index`` (its place where
        nothing is shuffled).
        """
        from fastload.engine import make_engine

        entry = self._entry(index)
        engine = make_engine(self.plan(seed=seed, samples=True), 0)
        try:
            place = entry if position is None else position
            return self._make(engine, np.array([entry], np.int64), np.array([place], np.int64), epoch)[0]
        finally:
            engine.close()

    def _samples(self, entries: np.ndarray[Any, np.dtype[np.int64]]) -> list[Any]:
        if not len(entries):
            return []
        engine = self._engine()
        positions, epoch = np.zeros_like(entries), 0
        if self.look.draws:
            key = _random_bits()
            # The low bits number the samples of this call, the high ones tell calls apart.
            positions = np.arange(len(entries), dtype=np.int64) + (key & 0x3FFFFFFF) * (1 << 32)
            epoch = key >> 31
        return self._make(engine, entries, positions, epoch)

    def _make(self, engine: Engine, entries: Any, positions: Any, epoch: int) -> list[Any]:
        sources, records = self.selection.locate(entries)
        # Images may differ in size, and what callables make may too: then one sample is one batch.
        varied = any(plan.operations or isinstance(plan.field, Image) for plan in self._sample_plan.fields)
        step = 1 if varied else len(entries)
        out: list[Any] = []
        for low in range(0, len(entries), step):
            part = slice(low, low + step)
            engine.submit(BatchIndices(positions[part], sources[part], records[part], epoch))
            out.extend(self.unbatch(engine.next(), len(records[part])))
        return out

    def unbatch(self, values: Mapping[str, Any], count: int) -> list[Any]:
        """Return a batch of ``count`` samples, as an engine made it, as single samples."""
        return [self.look.shape(sample) for sample in self.look.samples(values, self._sample_plan, count)]

    def _engine(self) -> Engine:
        """Return this thread's engine, made anew in a forked child."""
        held: tuple[int, Engine] | None = getattr(self._local, "engine", None)
        if held is None or held[0] != os.getpid():
            from fastload.engine import make_engine

            held = self._local.engine = (os.getpid(), make_engine(self._sample_plan, 0))
        return held[1]


def _describe(field: Field) -> str:
    """Return a field as one would write it in a schema, long class lists cut."""
    if isinstance(field, Label) and len(field.classes) > 5:
        return f"Label({', '.join(field.classes[:3])}, … {len(field.classes):,} classes)"
    said = [part for part in dataclasses.fields(field) if getattr(field, part.name) != part.default]
    required = [repr(getattr(field, part.name)) for part in said if part.default is dataclasses.MISSING]
    named = [f"{p.name}={getattr(field, p.name)!r}" for p in said if p.default is not dataclasses.MISSING]
    return f"{type(field).__name__}({', '.join(required + named)})"


def _random_bits() -> int:
    """Return 63 bits from torch's generator, which its DataLoader seeds anew in each worker and epoch."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return random.getrandbits(63)
    return int(torch.empty((), dtype=torch.int64).random_())


def open_dataset(
    path: str | os.PathLike[str],
    split: str | None = None,
    *,
    verify: Literal["first", "always", "never"] = "first",
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Open a dataset: a folder, or any fsspec URL.

    ``split`` may be left out where there is one, or one called ``default``. ``verify`` says when checksums
    are looked at: ``"first"`` (each value when this process first touches it), ``"always"`` or ``"never"``.
    ``storage_options`` go to fsspec. Raises NotADatasetError, FormatError or UsageError.
    """
    if verify not in ("first", "always", "never"):
        raise UsageError(f"unknown verify {verify!r}", hint="use 'first', 'always' or 'never'")
    storage = open_storage(os.fspath(path), dict(storage_options or {}))
    manifest = Manifest.load(storage)
    reader = SplitReader.open(storage, split, verify=verify, manifest=manifest)
    return Dataset([reader], Selection.whole(reader.records), Look(tuple(reader.schema)), manifest.metadata)
