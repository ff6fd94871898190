"""Views of datasets that draw their samples by a rule: mixtures, splits, weights; and DataLoaders of them."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload import transforms as T
from fastload.dataset import Dataset
from fastload.errors import SchemaError, UsageError
from fastload.sampling import Selection

pytestmark = pytest.mark.usefixtures("backend")

CLASSES = ["cat", "dog", "owl", "none"]


def write(folder: Path, name: str, first: int, count: int) -> Dataset:
    path = str(folder / f"{name}.fl")
    schema = {"x": fastload.Scalar("int64"), "label": fastload.Label(CLASSES), "s": fastload.Str()}
    with fastload.Writer(path, schema=schema, shard_size=256) as writer:
        for i in range(count):
            label = 0 if i % 10 < 7 else 1 if i % 10 < 9 else 2
            writer.append({"x": first + i, "label": label, "s": CLASSES[label]})
    return fastload.open(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("views")


@pytest.fixture(scope="module")
def small(folder: Path) -> Dataset:
    return write(folder, "small", 1000, 30)


@pytest.fixture(scope="module")
def ds(folder: Path) -> Dataset:
    return write(folder, "ds", 0, 100)


def xs(ds: Dataset) -> list[int]:
    return [int(sample["x"]) for sample in ds.select_columns("x")]


def loaded(ds: Dataset, batches: int | None = None, **arguments: Any) -> list[int]:
    loader = fastload.DataLoader(ds, batch_size=8, **arguments)
    with loader:
        return [x for batch in itertools.islice(loader, batches) for x in batch["x"].tolist()]


def ordered(ds: Dataset, seed: int, epoch: int, shuffle: bool, count: int | None = None) -> list[int]:
    """What Order.locate says, read one by one from the sources."""
    order = ds.selection.order(seed, epoch, shuffle=shuffle)
    positions = np.arange(order.count if count is None else count)
    sources, records = order.locate(positions)
    plain = [Dataset([source], Selection.whole(source.records), ds.look, {}) for source in ds.sources]
    return [int(plain[s][r]["x"]) for s, r in zip(sources.tolist(), records.tolist(), strict=True)]


def test_a_mixture_of_datasets(ds: Dataset, small: Dataset) -> None:
    mixed = fastload.mix({"a": (ds, 0.7), "b": (small, 0.3)})
    assert len(mixed) == 100  # both give their last record in the tenth block
    assert sorted(xs(mixed)) == [*range(70), *range(1000, 1030)]
    assert int(mixed[-1]["x"]) == xs(mixed)[-1]
    assert xs(mixed[10:20]) == xs(mixed)[10:20]
    assert xs(mixed.take(3)[::-1]) == xs(mixed)[2::-1]
    assert xs(mixed[[5, -1]]) == [xs(mixed)[5], xs(mixed)[-1]]
    with pytest.raises(IndexError, match="the dataset has 100 records"):
        mixed[100]
    assert "a 70%, b 30%; stop: first_exhausted" in repr(mixed)
    assert "100 records" in repr(mixed)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_a_loader_follows_the_order_of_a_mixture(
    ds: Dataset, small: Dataset, workers: int, shuffle: bool, stop: Any
) -> None:
    mixed = fastload.mix(
        {"a": (ds, 0.6), "b": (small, 0.4)}, stop=stop, schedule=[(40, {"a": 0.5, "b": 0.5})]
    )
    loader = fastload.DataLoader(mixed, batch_size=8, shuffle=shuffle, num_workers=workers, seed=5)
    for epoch in range(2):
        got = [x for batch in loader for x in batch["x"].tolist()]
        assert got == ordered(mixed, 5, epoch, shuffle)
    assert len(loader) == -(-len(mixed) // 8)


VIEWS: dict[str, Callable[[Dataset, Dataset], Dataset]] = {
    "repeat": lambda ds, small: small.repeat(3),
    "weighted": lambda ds, small: ds.weighted(np.arange(100), num_samples=77),
    "balanced": lambda ds, small: ds.balanced("label"),
    "split": lambda ds, small: ds.split([0.6, 0.4], seed=3)[1],
    "stratified": lambda ds, small: ds.split([0.6, 0.4], stratify="label")[0],
    "shuffle": lambda ds, small: ds.shuffle(2)[3:70],
    "concat": lambda ds, small: fastload.concat([small, ds[::-2], ds.shuffle(1)[:9]]),
    "mixture of views": lambda ds, small: fastload.mix(
        {"a": (ds.balanced("s"), 0.5), "b": (small.split([0.5, 0.5])[0], 0.5)}, stop="all_exhausted"
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_loader_follows_the_order_of_any_view(name: str, ds: Dataset, small: Dataset) -> None:
    view = VIEWS[name](ds, small)
    for shuffle, workers in ((False, 0), (True, 2)):
        assert loaded(view, shuffle=shuffle, num_workers=workers, seed=1) == ordered(view, 1, 0, shuffle)
    assert xs(view) == ordered(view, 9, 9, False)
    again = pickle.loads(pickle.dumps(view))
    assert again.fingerprint == view.fingerprint
    assert xs(again) == xs(view)
    window = view.window("1KB")
    order = view.selection.order(0, 0, shuffle=True, window=window)
    assert len(order.locate(np.arange(order.count))[0]) == len(view)
    with fastload.DataLoader(view, 8, shuffle=True, shuffle_window="1KB", seed=0) as loader:
        assert sum(len(batch["x"]) for batch in loader) == len(view)
    # torch's own loader takes views as they are.
    batches = torch.utils.data.DataLoader(view, batch_size=8)
    assert [x for batch in batches for x in batch["x"].tolist()] == xs(view)


def test_an_endless_mixture(ds: Dataset, small: Dataset) -> None:
    mixed = fastload.mix({"a": (ds, 0.5), "b": (small, 0.5)}, stop="endless")
    with pytest.raises(TypeError, match="never ends"):
        len(mixed)
    assert "Dataset of endless records" in repr(mixed)
    assert int(mixed[10**15]["x"]) < 2000
    assert len(mixed.take(1000)) == 1000
    with pytest.raises(UsageError, match="too many"):
        mixed[7:]
    for shuffle in (False, True):
        expected = ordered(mixed, 3, 0, shuffle, 400)
        assert loaded(mixed, 50, shuffle=shuffle, seed=3, num_workers=1) == expected
        loader = fastload.DataLoader(mixed, 8, shuffle=shuffle, seed=3)
        with pytest.raises(TypeError, match="endless"):
            len(loader)
        batches = iter(loader)
        for _ in range(7):
            next(batches)
        state = loader.state_dict()
        loader.close()
        other = fastload.DataLoader(mixed, 4, shuffle=shuffle, seed=3)
        other.load_state_dict(state)
        resumed = [x for batch in itertools.islice(other, 10) for x in batch["x"].tolist()]
        assert resumed == expected[56:96]
        other.close()
    with pytest.raises(UsageError, match=r"never ends: take\(n\) first"):
        mixed.split([0.5, 0.5])
    assert next(iter(mixed))["x"] == 0


def test_resuming_a_mixture_in_the_middle_of_an_epoch(ds: Dataset, small: Dataset) -> None:
    mixed = fastload.mix({"a": (ds, 0.7), "b": (small, 0.3)}, stop="all_exhausted")
    whole = ordered(mixed, 0, 1, True)
    loader = fastload.DataLoader(mixed, 16, shuffle=True, seed=0, num_workers=2)
    loader.set_epoch(1)
    batches = iter(loader)
    done = [x for batch in itertools.islice(batches, 3) for x in batch["x"].tolist()]
    state = loader.state_dict()
    loader.close()
    other = fastload.DataLoader(mixed, 4, shuffle=True, seed=0)
    other.load_state_dict(state)
    assert done + [x for batch in other for x in batch["x"].tolist()] == whole
    changed = fastload.mix({"a": (ds, 0.6), "b": (small, 0.4)}, stop="all_exhausted")
    with pytest.raises(fastload.errors.StateError, match="fingerprint"):
        fastload.DataLoader(changed, 4, shuffle=True, seed=0).load_state_dict(state)


def test_ranks_share_a_mixture(ds: Dataset, small: Dataset) -> None:
    mixed = fastload.mix({"a": (ds, 0.7), "b": (small, 0.3)})
    whole = ordered(mixed, 2, 0, True)
    ranks = []
    for rank in range(4):
        sampler = fastload.DistributedSampler(mixed, num_replicas=4, rank=rank, shuffle=True, seed=2)
        loader = fastload.DataLoader(mixed, batch_size=5, sampler=sampler)
        ranks.append([x for batch in loader for x in batch["x"].tolist()])
    assert [x for group in zip(*ranks, strict=True) for x in group] == whole


def test_which_dataset_a_sample_is_of(ds: Dataset, small: Dataset) -> None:
    mixed = fastload.mix({"a": (ds, 0.7), "b": (small, 0.3)})
    loader = fastload.DataLoader(mixed, batch_size=8, shuffle=True, seed=0, num_workers=2)
    for batch in loader:
        assert loader.batch_info is not None
        names = mixed.names_at(loader.batch_info.positions)
        assert names == ["b" if x >= 1000 else "a" for x in batch["x"].tolist()]
    assert mixed.names_at([100, 107]) == mixed.names_at([0, 7])  # pads
    assert mixed.names_at([]) == []
    assert ds.balanced("label").names_at(range(3)) == ["cat", "dog", "owl"]
    with pytest.raises(UsageError, match="no mixture"):
        ds.names_at([0])
    with pytest.raises(UsageError, match="position -1 is negative"):
        mixed.names_at([-1])


def test_a_substitute_comes_out_of_the_mixture(ds: Dataset, small: Dataset) -> None:
    mixed = fastload.mix({"a": (ds, 0.5), "b": (small, 0.5)}, stop="endless")

    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["x"]) < 100:
            raise fastload.errors.RecordError("not this one")
        return sample

    got = loaded(mixed.map(refuse), 10, shuffle=True, seed=0, on_error="substitute", num_workers=2)
    assert len(got) == 80
    assert min(got) >= 1000


def test_mixing_transformed_datasets(ds: Dataset, small: Dataset) -> None:
    def double(sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": 2 * sample["x"]}

    a, b = ds.map(double), small.map(double)
    mixed = fastload.mix({"a": (a, 0.5), "b": (b, 0.5)})
    assert loaded(mixed) == [2 * x for x in ordered(mixed.map(double)._with(look=ds.look), 0, 0, False)]
    assert loaded(fastload.mix({"a": (ds, 1), "b": (small, 1)}).map(double)) == loaded(mixed)


def test_datasets_of_different_kinds_are_not_mixed(ds: Dataset, small: Dataset) -> None:
    with pytest.raises(SchemaError, match=r"'a' and 'b' cannot be mixed: their columns differ: give both"):
        fastload.mix({"a": (ds, 1), "b": (small.select_columns("x"), 1)})
    with pytest.raises(SchemaError, match="cannot be concatenated: their columns differ"):
        fastload.concat([ds, small.select_columns("x")])


def test_mixtures_that_cannot_be(ds: Dataset, small: Dataset) -> None:
    with pytest.raises(UsageError, match="nothing to mix"):
        fastload.mix({})
    with pytest.raises(UsageError, match="the schedule names 'c', which is not mixed: known: a, b"):
        fastload.mix({"a": (ds, 1), "b": (small, 1)}, schedule=[(5, {"c": 1})])
    with pytest.raises(UsageError, match="source 'b' of a mixture has no records"):
        fastload.mix({"a": (ds, 1), "b": (small[:0], 1)})
    with pytest.raises(UsageError, match="nothing to concatenate"):
        fastload.concat([])
    mixed = fastload.mix({"a": (ds, 1), "b": (small, 1)})
    with pytest.raises(UsageError, match="cannot concatenate samples that are drawn by a rule"):
        mixed + ds
    with pytest.raises(UsageError, match="cannot shuffle samples that are drawn by a rule"):
        mixed.shuffle()
    assert xs(mixed[:4] + ds[:2]) == [*xs(mixed)[:4], 0, 1]


def test_torchs_wrappers_of_a_mixture(ds: Dataset, small: Dataset) -> None:
    mixed = fastload.mix({"a": (ds, 1), "b": (small, 1)})
    subset = torch.utils.data.Subset(mixed, [3, 1])
    loader = fastload.DataLoader(subset, batch_size=2)
    assert next(iter(loader))["x"].tolist() == [xs(mixed)[3], xs(mixed)[1]]
    assert loader.stats()["engine"] != "torch"
    parts = torch.utils.data.random_split(mixed, [0.5, 0.5])
    assert sorted(loaded(parts[0]) + loaded(parts[1])) == sorted(xs(mixed))
    with pytest.warns(UserWarning, match="ConcatDataset wraps a fastload dataset"):
        joined = fastload.DataLoader(torch.utils.data.ConcatDataset([mixed, ds]), batch_size=8)
    assert [x for batch in joined for x in batch["x"].tolist()] == xs(mixed) + xs(ds)


def test_fingerprints(ds: Dataset, small: Dataset) -> None:
    def fingerprint(a: float = 0.5, **more: Any) -> str:
        return fastload.mix({"a": (ds, a), "b": (small, 0.5)}, **more).fingerprint

    views = [view(ds, small).fingerprint for view in VIEWS.values()]
    mixtures = [
        fingerprint(),
        fingerprint(0.6),
        fingerprint(stop="endless"),
        fingerprint(stop="endless", schedule=[(10, {"a": 1})]),
        fastload.mix({"b": (small, 0.5), "a": (ds, 0.5)}).fingerprint,
    ]
    assert len({*views, *mixtures, ds.fingerprint, small.fingerprint}) == len(views) + len(mixtures) + 2
    assert fastload.mix({"x": (ds, 1), "y": (small, 1)}).fingerprint == fingerprint()


def test_split(ds: Dataset) -> None:
    train, val, test = ds.split([0.8, 0.15, 0.05], seed=4)
    assert (len(train), len(val), len(test)) == (80, 15, 5)
    assert sorted(xs(train) + xs(val) + xs(test)) == list(range(100))
    assert xs(ds.split([0.8, 0.15, 0.05], seed=4)[1]) == xs(val)
    assert xs(ds.split([0.8, 0.15, 0.05], seed=5)[1]) != xs(val)
    assert all(len(part.selection.picked_records) == 0 for part in (train, val, test))
    again = train.split([0.5, 0.5])
    assert sorted(xs(again[0]) + xs(again[1])) == sorted(xs(train))
    assert [len(part) for part in ds[:0].split([0.5, 0.5])] == [0, 0]
    assert [len(part) for part in ds[:5].split([0.5, 0.5])] == [3, 2]
    with pytest.raises(UsageError, match="do not sum to 1"):
        ds.split([0.8, 0.1])


def test_a_stratified_split(ds: Dataset) -> None:
    for field in ("label", "s"):
        train, val = ds.split([0.8, 0.2], seed=1, stratify=field)
        assert (len(train), len(val)) == (80, 20)
        assert sorted(xs(train) + xs(val)) == list(range(100))
        assert xs(val) == sorted(xs(val))
        assert np.bincount([sample["label"] for sample in val]).tolist() == [14, 4, 2]
        assert xs(ds.split([0.8, 0.2], seed=1, stratify=field)[1]) == xs(val)
        assert xs(ds.split([0.8, 0.2], seed=2, stratify=field)[1]) != xs(val)
    assert [len(part) for part in ds[:0].split([0.5, 0.5], stratify="label")] == [0, 0]
    each = ds[:7].split([0.5, 0.3, 0.2], stratify="x")
    assert [len(part) for part in each] == [4, 2, 1]
    assert sorted(x for part in each for x in xs(part)) == list(range(7))
    for wrong in ("nothing", "image"):
        with pytest.raises(UsageError, match=f"cannot be grouped by '{wrong}'"):
            ds.split([0.5, 0.5], stratify=wrong)


def test_repeat(small: Dataset) -> None:
    thrice = small.repeat(3)
    assert len(thrice) == 90
    assert xs(thrice) == xs(small) * 3
    got = loaded(thrice, shuffle=True, seed=0)
    epochs = [got[:30], got[30:60], got[60:]]
    assert all(sorted(epoch) == xs(small) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert len(small.repeat(0)) == len(small[:0].repeat(2)) == 0
    with pytest.raises(UsageError):
        small.repeat(-1)
    endless = small.repeat()
    assert loaded(endless, 5) == (xs(small) * 2)[:40]


def test_weighted(ds: Dataset) -> None:
    weights = torch.zeros(100)
    weights[[3, 50]] = torch.tensor([1.0, 3.0])
    drawn = ds.weighted(weights, num_samples=400)
    one, two = (loaded(drawn, shuffle=True, seed=0) for _ in range(2))
    assert one == two
    assert set(one) == {3, 50}
    assert 70 < one.count(3) < 130
    assert loaded(drawn, shuffle=True, seed=1) != one
    assert loaded(drawn, seed=1) == loaded(drawn, seed=2) == xs(drawn)
    assert len(ds.weighted([1] * 100)) == 100
    for wrong in ([1.0] * 99, [-1.0] * 100, [0.0] * 100):
        with pytest.raises(UsageError):
            ds.weighted(wrong)


def test_balanced(ds: Dataset) -> None:
    over = ds.balanced("label")
    assert np.bincount([sample["label"] for sample in over]).tolist() == [
        70,
        69,
        69,
    ]  # ends with the last cat
    assert set(xs(over)) == set(range(100))
    under = ds.balanced("s", stop="first_exhausted")
    labels = np.bincount([sample["label"] for sample in under])
    assert labels[2] == 10
    assert labels.max() - labels.min() <= 1
    assert "cat 33.33%, dog 33.33%, owl 33.33%" in repr(over)
    assert len(ds[:0].balanced("label")) == 0
    for start in range(0, 180, 30):
        batch = [sample["label"] for sample in over[start : start + 30]]
        assert np.bincount(batch).tolist() == [10, 10, 10]


def test_grouping_reads_one_column_only(tmp_path: Path) -> None:
    path = str(tmp_path / "pictures.fl")
    schema = {"image": fastload.Image(), "label": fastload.Label(["a", "b"])}
    with fastload.Writer(path, schema=schema) as writer:
        for i in range(20):
            writer.append({"image": b"\xff\xd8 nothing that decodes", "label": i % 2})
    ds = fastload.open(path).transform(image=T.Resize(8)).as_tuple("image")
    assert len(ds.balanced("label")) == 20
    assert [len(part) for part in ds.split([0.5, 0.5], stratify="label")] == [10, 10]


def test_what_cannot_be_grouped_by(tmp_path: Path) -> None:
    path = str(tmp_path / "d.fl")
    schema = {"f": fastload.Scalar("float32"), "n": fastload.Scalar("int8", nullable=True)}
    with fastload.Writer(path, schema=schema) as writer:
        writer.append({"f": 1, "n": None})
    for field in ("f", "n"):
        with pytest.raises(UsageError, match="name a Label, an integer or bool Scalar, or a Str"):
            fastload.open(path).balanced(field)


def test_many_datasets_are_concatenated_and_mixed_at_once(ds: Dataset) -> None:
    parts = [ds[i : i + 1] for i in range(100)] * 10
    whole = fastload.concat(parts)
    assert len(whole) == 1000
    assert len(whole.sources) == 1
    mixed = fastload.mix({str(i): (part, 1) for i, part in enumerate(parts)}, stop="all_exhausted")
    assert sorted(loaded(mixed, shuffle=True, seed=0)) == sorted(list(range(100)) * 10)
    assert "992 more" in repr(mixed)
