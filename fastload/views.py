"""Views of datasets: parts of one, several as one, and others of its samples."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
import numpy.typing as npt

from fastload.engine.look import Look
from fastload.engine.plan import BatchIndices
from fastload.errors import SchemaError, UsageError
from fastload.format import SplitReader
from fastload.sampling import ENDLESS, Mixture, Records, Selection, Stop, Weighted, cells_of, shares_of
from fastload.schema import Label, Scalar, Str

if TYPE_CHECKING:
    from fastload.dataset import Dataset

__all__ = ["Views", "concat", "mix"]

Int64Array = npt.NDArray[np.int64]
_COLUMN_BATCH = 1 << 16


class Views:
    """The part of :class:`fastload.Dataset` that makes views of it."""

    sources: tuple[SplitReader, ...]
    selection: Records
    look: Look

    if TYPE_CHECKING:

        def _with(
            self,
            *,
            sources: Sequence[SplitReader] | None = None,
            selection: Records | None = None,
            look: Look | None = None,
        ) -> Dataset: ...

        def _samples(self, entries: Int64Array) -> list[Any]: ...

    # --- parts -----------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int]) -> Dataset: ...
    def __getitem__(self, key: Any) -> Any:
        """Return one sample (for an integer) or a view (for a slice or a list of integers).

        Raises IndexError for an index out of range.
        """
        if isinstance(key, slice):
            return self._with(selection=self.selection[key])
        if isinstance(key, range):
            return self._with(selection=self._range(key))
        if isinstance(key, (list, tuple)) or getattr(key, "ndim", False):
            return self._with(selection=self.selection.take(self.selection.normalise(key)))
        return self._samples(np.array([self._entry(key)], np.int64))[0]

    def _entry(self, key: Any) -> int:
        """Return one index as a number in [0, count): Records.normalise for one, without arrays."""
        try:
            index = operator.index(key)
        except TypeError:
            raise TypeError(
                f"a dataset is indexed by an integer, a slice or a list of integers, not {type(key).__name__}"
            ) from None
        count = self.selection.count
        if not -count <= index < count:
            raise IndexError(f"index {index} is out of range: the dataset has {count:,} records")
        return index + count if index < 0 else index

    def _range(self, key: range) -> Records:
        if not key or not 0 <= min(key[0], key[-1]) <= max(key[0], key[-1]) < self.selection.count:
            return self.selection.take(self.selection.normalise(np.asarray(key, dtype=np.int64)))
        stop = key[-1] + (1 if key.step > 0 else -1)
        return self.selection[key[0] : stop if stop >= 0 else None : key.step]

    def take(self, count: int) -> Dataset:
        """Return a view of the first ``count`` records, or of all where there are fewer."""
        if count < 0:
            raise UsageError(f"cannot take {count} records")
        return self[:count]

    def split(
        self, fractions: Sequence[float], *, seed: int = 0, stratify: str | None = None
    ) -> list[Dataset]:
        """Return views that divide the records at random: ``train, val = ds.split([0.9, 0.1])``.

        They are disjoint, and all records are in one of them; which is a function of ``seed`` and the number
        of records. Sizes are ``fractions``, which sum to 1, of all, by largest remainder. The views are
        ranges of a permutation, in constant memory, and in its order.

        ``stratify`` names a Label, integer or Str field, of whose every value each view gets its fraction as
        well (of two views, to less than 1 record). Only that field is read. The views are then lists of
        records, 12 bytes each, in the dataset's order.
        """
        count = len(_finite(self.selection, "split"))
        sizes = shares_of(count, fractions)
        if stratify is None:
            shuffled = _selection(self.selection, "split").shuffled(seed)
            stops = np.cumsum(sizes).tolist()
            bounds = zip([0, *stops], stops, strict=False)
            return [self._with(selection=shuffled[low:high]) for low, high in bounds]
        groups = _groups(_column(self, stratify))
        cells = cells_of([len(group) for group in groups], sizes)
        chosen: list[list[Int64Array]] = [[] for _ in sizes]
        for number, (group, row) in enumerate(zip(groups, cells, strict=True)):
            order = Selection.whole(len(group)).shuffled(seed + number * _SEED_STEP).records()
            for part, picks in zip(chosen, np.split(group[order], np.cumsum(row)[:-1]), strict=True):
                part.append(picks)
        nothing = np.empty(0, np.int64)
        return [
            self._with(selection=self.selection.take(np.sort(np.concatenate([nothing, *part]))))
            for part in chosen
        ]

    def shuffle(self, seed: int = 0) -> Dataset:
        """Return a view of the records in another, fixed order, a function of ``seed``; in constant memory.

        For an order that changes from epoch to epoch give the DataLoader ``shuffle=True``.
        """
        return self._with(selection=_selection(self.selection, "shuffle").shuffled(seed))

    # --- other numbers of the same ---------------------------------------------------------------------

    def repeat(self, times: int | None = None) -> Dataset:
        """Return ``times`` epochs of it as one dataset; None never ends.

        With ``shuffle=True`` each epoch has an order of its own, and ends before the next one begins.
        """
        if times is not None and times < 0:
            raise UsageError(f"cannot repeat a dataset {times} times")
        if not self.selection.count:
            return self._with()
        return self._with(selection=Mixture.repeated(self.selection, times))

    def weighted(self, weights: Sequence[float] | Any, num_samples: int | None = None) -> Dataset:
        """Return a view of ``num_samples`` draws of records with replacement (by default as many as records).

        ``weights`` has a number for each record, as torch's WeightedRandomSampler has; they need not sum to
        1. With ``shuffle=True`` each epoch draws anew, as a function of (seed, epoch, position); without it
        the draws are those of ``ds[i]``, always the same.
        """
        array = np.array(np.asarray(weights), dtype=np.float64)
        samples = len(_finite(self.selection, "weighted")) if num_samples is None else num_samples
        return self._with(selection=Weighted(self.selection, array, samples))

    def balanced(self, field: str, *, stop: Stop = "all_exhausted") -> Dataset:
        """Return a view that has every value of ``field`` equally often: a mixture of one view a value.

        ``field`` is a Label, integer or Str field; only it is read. With stop ``"all_exhausted"`` every
        record comes once at least, and those of rare values again; with ``"first_exhausted"`` the rarest
        value's records come once, and no more of the others. Values without records are left out.
        """
        groups = _groups(_column(self, field))
        if not groups:
            return self._with()
        line = self.selection.take(np.concatenate(groups))
        stops = np.cumsum([len(group) for group in groups]).tolist()
        parts = [line[low:high] for low, high in zip([0, *stops], stops, strict=False)]
        names = _names(self, field, groups)
        return self._with(selection=Mixture.of(parts, [1] * len(parts), stop=stop, names=names))

    def names_at(self, positions: Sequence[int] | Any) -> list[str]:
        """Return which dataset of a mixture each position of an epoch is of; of ``balanced``, which value.

        ``ds.names_at(loader.batch_info.positions)`` tells it of the batch that a loader of ``ds`` gave last.
        It is the same in every epoch, shuffled or not. Raises UsageError for what is no mixture.
        """
        if not isinstance(self.selection, Mixture):
            raise UsageError("this is no mixture, whose samples have a name", hint="see fastload.mix")
        array = np.asarray(positions, dtype=np.int64)
        if len(array) and int(array.min()) < 0:
            raise UsageError(f"position {int(array.min())} is negative")
        return self.selection.names_at(array)

    # --- several as one --------------------------------------------------------------------------------

    def __add__(self, other: Dataset) -> Dataset:
        """Return a view of this dataset's records, then the other's.

        Both must have the same schema, columns, transforms and format. Raises SchemaError where not.
        """
        if not isinstance(other, Views):
            return NotImplemented
        return concat([cast("Dataset", self), other])

    def difference(self, other: Dataset) -> str | None:
        """Return why samples of two datasets are not of one kind, or None if they are."""
        mine, theirs = self.sources[0].schema, other.sources[0].schema
        if mine != theirs:
            names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
            return f"their schemas differ in {', '.join(names) or 'the order of their fields'}"
        for part in dataclasses.fields(Look):
            if getattr(self.look, part.name) != getattr(other.look, part.name):
                said = {"programs": "transforms", "tuples": "as_tuple", "ragged": "with_ragged"}
                return f"their {said.get(part.name, part.name)} differ"
        return None


def concat(datasets: Sequence[Dataset]) -> Dataset:
    """Return the records of all ``datasets``, one after another, as one dataset: what ``+`` does with two.

    All must have the same schema, columns, transforms and format. Raises SchemaError where not.
    """
    if not datasets:
        raise UsageError("there is nothing to concatenate", hint="give one dataset at least")
    first = datasets[0]
    for other in datasets[1:]:
        difference = first.difference(other)
        if difference is not None:
            raise SchemaError(f"these datasets cannot be concatenated: {difference}")
    sources, parts = _together(datasets)
    if len(parts) == 1:
        return first
    selections = [_selection(part, "concatenate") for part in parts]
    return first._with(sources=sources, selection=Selection.joined(selections))


def mix(
    datasets: Mapping[str, tuple[Dataset, float]],
    *,
    stop: Stop = "first_exhausted",
    schedule: Sequence[tuple[int, Mapping[str, float]]] = (),
) -> Dataset:
    """Return a mixture: ``fastload.mix({"web": (web, 0.7), "books": (books, 0.3)})``.

    Samples come from the datasets in turn, as their weights say: exactly in every block of positions, and
    off by less than one sample in every prefix (docs/mixing.md). Each dataset has epochs of its own, in
    which every record of it comes once, shuffled anew where the DataLoader shuffles.

    Args:
        datasets: by name, a dataset and its weight; weights need not sum to 1. All must be of one kind: the
            same schema, columns, transforms and format.
        stop: an epoch of the mixture ends when the first dataset has given its last record
            (``"first_exhausted"``), when every dataset has (``"all_exhausted"``; the others begin anew
            meanwhile), or never (``"endless"``; it has no ``len()``).
        schedule: ``(position, weights by name)``: weights that count from that position on, which is
            moved to the end of the block begun. Names left out have weight 0 from there.

    Raises SchemaError where datasets are of different kinds, and UsageError for weights that cannot be.
    """
    if not datasets:
        raise UsageError("there is nothing to mix", hint="give {name: (dataset, weight)}")
    names = list(datasets)
    first = datasets[names[0]][0]
    for name in names[1:]:
        difference = first.difference(datasets[name][0])
        if difference is not None:
            raise SchemaError(
                f"{names[0]!r} and {name!r} cannot be mixed: {difference}",
                hint="give both the same fields, transforms, columns and format before mixing them",
            )
    changes = []
    for position, weights in schedule:
        unknown = [name for name in weights if name not in datasets]
        if unknown:
            raise UsageError(
                f"the schedule names {unknown[0]!r}, which is not mixed", hint=f"known: {', '.join(names)}"
            )
        changes.append((position, [weights.get(name, 0) for name in names]))
    sources, parts = _together([dataset for dataset, _ in datasets.values()])
    weights_at_first = [weight for _, weight in datasets.values()]
    mixture = Mixture.of(parts, weights_at_first, stop=stop, schedule=changes, names=names)
    return first._with(sources=sources, selection=mixture)


_SEED_STEP = 0x9E3779B97F4A7C15
"""Tells the permutations of a stratified split's groups apart."""


def _together(datasets: Sequence[Dataset]) -> tuple[list[SplitReader], list[Records]]:
    """Return the sources of all ``datasets``, each once, and their records by these sources' numbers."""
    sources: list[SplitReader] = []
    known: dict[int, int] = {}
    parts = []
    for dataset in datasets:
        for source in dataset.sources:
            if id(source) not in known:
                known[id(source)] = len(sources)
                sources.append(source)
        parts.append(dataset.selection.renumbered([known[id(source)] for source in dataset.sources]))
    return sources, parts


def _finite(records: Records, what: str) -> Records:
    if records.count >= ENDLESS:
        raise UsageError(
            f"{what} needs a number of records, and this mixture never ends", hint="take(n) first"
        )
    return records


def _selection(records: Records, what: str) -> Selection:
    if isinstance(records, Selection):
        return records
    raise UsageError(
        f"cannot {what} samples that are drawn by a rule of their own (a mixture, weighted or repeated ones)",
        hint=f"{what} what they are drawn from, or take a slice of them",
    )


def _column(dataset: Views, name: str) -> npt.NDArray[Any]:
    """Return the values of one field of all records, as stored: no other field is read."""
    from fastload.engine import make_engine

    schema = dataset.sources[0].schema
    field = schema.get(name)
    integers = isinstance(field, Scalar) and np.dtype(field.numpy_dtype).kind in "iub"
    if field is None or field.nullable or not (integers or isinstance(field, (Label, Str))):
        raise UsageError(
            f"records cannot be grouped by {name!r}, which is {field!r}",
            hint="name a Label, an integer or bool Scalar, or a Str field, without null",
        )
    records = _finite(dataset.selection, "grouping")
    engine = make_engine(Look((name,)).plan(schema, dataset.sources), 0)
    parts: list[Any] = []
    try:
        for low in range(0, records.count, _COLUMN_BATCH):
            entries = np.arange(low, min(low + _COLUMN_BATCH, records.count), dtype=np.int64)
            engine.submit(BatchIndices(entries, *records.locate(entries)))
            parts.append(np.array(engine.next()[name]))
    finally:
        engine.close()
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _groups(values: npt.NDArray[Any]) -> list[Int64Array]:
    """Return the entries of each value, ascending: values in ascending order too."""
    if not len(values):
        return []
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    return np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def _names(dataset: Views, field: str, groups: Sequence[Int64Array]) -> list[str]:
    """Return the names of groups: of classes where the field has some, else the values."""
    firsts = _column(dataset._with(selection=dataset.selection.take(np.array([g[0] for g in groups]))), field)
    kind = dataset.sources[0].schema[field]
    if isinstance(kind, Label):
        return [kind.classes[number] for number in firsts.tolist()]
    return [str(value) for value in firsts.tolist()]
