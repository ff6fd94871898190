from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastload
from fastload.sampling import Selection, permute
from fastload.sampling.permutation import _permute_numpy, permutation_key

seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**32 - 1)


@given(st.integers(1, 2**62), seeds, epochs, st.data())
def test_permutation_is_one_function(count: int, seed: int, epoch: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, count - 1), max_size=20, unique=True))
    result, key = permute(positions, count, seed, epoch), permutation_key(seed, epoch)
    assert np.array_equal(result, _permute_numpy(np.array(positions, np.int64), count, key))
    assert len(set(result.tolist())) == len(positions)
    assert all(0 <= record < count for record in result.tolist())


@st.composite
def views(draw: st.DrawFn) -> tuple[Selection, list[tuple[int, int]]]:
    """A selection and the same as a Python list, made by the same steps."""
    count = draw(st.integers(0, 12))
    source = draw(st.integers(0, 2))
    selection, model = Selection.whole(count, source), [(source, record) for record in range(count)]
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["slice", "take", "add"]))
        if kind == "slice":
            key = draw(st.slices(len(model)))
            selection, model = selection[key], model[key]
        elif kind == "take" and model:
            indices = draw(st.lists(st.integers(-len(model), len(model) - 1), max_size=8))
            selection = selection.take(selection.normalise(indices))
            model = [model[i] for i in indices]
        elif kind == "add":
            selection, model = selection + selection[::2], model + model[::2]
    return selection, model


@given(views(), views())
def test_views_compose_as_lists_do(
    one: tuple[Selection, list[tuple[int, int]]], two: tuple[Selection, list[tuple[int, int]]]
) -> None:
    selection, model = one[0] + two[0], one[1] + two[1]
    sources, records = selection.locate(np.arange(len(selection), dtype=np.int64))
    assert list(zip(sources.tolist(), records.tolist(), strict=True)) == model


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("order") / "numbers.fl")
    with fastload.Writer(path, schema={"x": fastload.Scalar("int64")}, shard_size=512) as writer:
        for i in range(101):
            writer.append({"x": i})
    return path


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.slices(101),
    st.integers(1, 40),
    st.integers(0, 4),
    st.integers(1, 5),
    st.booleans(),
    seeds,
    epochs,
    st.data(),
)
def test_a_loader_gives_the_order_at_any_workers_and_prefetch(
    backend: str,
    numbers: str,
    view: slice,
    batch_size: int,
    workers: int,
    prefetch: int,
    drop_last: bool,
    seed: int,
    epoch: int,
    data: st.DataObject,
) -> None:
    ds = fastload.open(numbers)[view].with_format("numpy")
    shuffle = len(ds) > 0 and data.draw(st.booleans())
    loader = fastload.DataLoader(
        ds,
        batch_size,
        shuffle,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        drop_last=drop_last,
        seed=seed,
    )
    loader.set_epoch(epoch)
    got = [batch["x"].tolist() for batch in loader]
    expected = list(range(101))[view]
    if shuffle:
        expected = [expected[i] for i in permute(range(len(expected)), len(expected), seed, epoch).tolist()]
    batches = [expected[i : i + batch_size] for i in range(0, len(expected), batch_size)]
    if drop_last:
        batches = [batch for batch in batches if len(batch) == batch_size]
    assert got == batches
    assert len(loader) == len(batches)
