"""Global batches are the same at any topology, and resuming anywhere is exact, on any other one."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastload
from fastload import DataLoader
from fastload.dataset import Dataset
from fastload.loader.sharding import Topology

RECORDS = 120


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a dataset of 120 records of a number each, in shards of about nine."""
    path = str(tmp_path_factory.mktemp("resume") / "numbers.fl")
    schema = {"x": fastload.Scalar("int64"), "text": fastload.Str()}
    with fastload.Writer(path, schema, shard_size=512) as writer:
        for x in range(RECORDS):
            writer.append({"x": x, "text": "." * 48})
    return path


@dataclasses.dataclass(frozen=True)
class Run:
    """What decides on the order of a run."""

    count: int
    seed: int
    epoch: int
    shuffle: bool
    window: str | None
    tail: str
    mixed: tuple[tuple[int, ...], str] | None
    """Weights of thirds of the dataset, and when the mixture of them ends."""

    @property
    def endless(self) -> bool:
        return self.mixed is not None and self.mixed[1] == "endless"

    def dataset(self, path: str) -> Dataset:
        ds = fastload.open(path)[: self.count]
        if self.mixed is None:
            return ds
        weights, ends = self.mixed
        third = max(1, self.count // 3)
        thirds = [ds[:third], ds[third : 2 * third], ds[2 * third :]]
        parts = {str(n): (part, weights[n]) for n, part in enumerate(thirds) if len(part)}
        return fastload.mix(parts, stop=ends)  # type: ignore[arg-type]

    def options(self) -> dict[str, Any]:
        window = self.window if self.shuffle else None
        tails = {"pad": {}, "uneven": {"pad": False}, "drop_last": {"drop_last": True}}
        return {"shuffle": self.shuffle, "seed": self.seed, "shuffle_window": window, **tails[self.tail]}


@dataclasses.dataclass(frozen=True)
class Team:
    """What must not matter."""

    world: int
    workers: int
    batch: int


def _runs(least: int, mixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Run]:
    return st.builds(
        Run,
        count=st.integers(least, RECORDS),
        seed=st.integers(0, 2**64 - 1),
        epoch=st.integers(0, 3),
        shuffle=st.booleans(),
        window=st.sampled_from([None, "1KB", "32MB"]),
        tail=st.sampled_from(["pad", "uneven", "drop_last"]),
        mixed=mixed,
    )


_MIXED = st.tuples(
    st.tuples(*[st.integers(1, 7)] * 3), st.sampled_from(["first_exhausted", "all_exhausted", "endless"])
)
# Each pass over a source with a window costs milliseconds on the Python engine: those of a few records would
# take minutes. test_mixture.py has the smallest ones.
RUNS = _runs(1, st.none()) | _runs(24, _MIXED)
ENOUGH = 6
"""Batches of a mixture that never ends."""
TEAMS = st.builds(
    Team, world=st.integers(1, 5), workers=st.integers(0, 2), batch=st.sampled_from([0, 1, 6, 13])
)


def members(dataset: Dataset, run: Run, team: Team, batch: int) -> Iterator[tuple[Topology, DataLoader[Any]]]:
    """Yield every rank's loader, and where it has to be run."""
    for rank in range(team.world):
        options = {"global_batch_size": batch, "num_workers": team.workers, "shard": True}
        yield Topology(rank, team.world), DataLoader(dataset, **options, **run.options())


def joined(
    dataset: Dataset, run: Run, team: Team, batch: int, state: str | None = None, stop: int | None = None
) -> tuple[list[list[int]], str]:
    """Return the global batches that the ranks make together, and the state that all of them agree on."""
    parts: dict[int, list[tuple[int, int]]] = {}
    states = set()
    for here, loader in members(dataset, run, team, batch):
        with mock.patch("fastload.loader.sharding.process_topology", lambda here=here: here):
            if state is not None:
                loader.load_state_dict(json.loads(state))
            loader.set_epoch(run.epoch)
            plan = loader.plan(ENOUGH if run.endless else 1 << 20)
            seen = 0
            for number, got in enumerate(itertools.islice(iter(loader), stop)):
                info = loader.batch_info
                assert info is not None
                assert info.global_samples == len(plan[number].positions)
                rows = zip(info.positions.tolist(), got["x"].tolist(), info.pads.tolist(), strict=True)
                parts.setdefault(number, []).extend((position, x) for position, x, pad in rows if not pad)
                seen = number + 1
            if stop is None and not run.endless:
                assert seen == len(loader) or state is not None
            states.add(json.dumps(loader.state_dict()))
    batches = [[x for _, x in sorted(parts[number])] for number in sorted(parts)]
    assert batches == [part.records.tolist() for part in plan[: len(batches)]]  # x is the record's number
    return batches, states.pop() if len(states) == 1 else ""


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=RUNS, batch=st.integers(1, 40), before=TEAMS, after=TEAMS, where=st.floats(0, 1))
def test_resuming_anywhere_is_exact(
    numbers: str, backend: str, run: Run, batch: int, before: Team, after: Team, where: float
) -> None:
    dataset = run.dataset(numbers)
    batch = max(batch, before.world, after.world)
    whole, _ = joined(dataset, run, Team(1, 0, 0), batch, stop=ENOUGH if run.endless else None)
    flat = [x for part in whole for x in part]
    if run.tail != "drop_last" and run.mixed is None:
        assert sorted(flat) == list(range(run.count))
    stop = int(where * len(whole))
    first, state = joined(dataset, run, before, batch, stop=stop)
    assert first == whole[:stop]
    if not state:  # only where some ranks get no part of the last batch
        assert run.tail == "uneven"
        assert stop == len(whole)
        return
    rest, _ = joined(dataset, run, after, batch, state, ENOUGH - stop if run.endless else None)
    assert rest == whole[stop:]
    if after.batch:  # another size of batches, from there on
        size = max(after.batch, after.world)
        other, _ = joined(dataset, run, after, size, state, ENOUGH if run.endless else None)
        got = [x for part in other for x in part]
        expected = flat[stop * batch :]
        if run.endless or run.tail == "drop_last":  # how much comes depends on the size
            assert got[: len(expected)] == expected[: len(got)]
        else:
            assert got == expected
