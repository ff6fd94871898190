"""Which share of each global batch a rank gets: shard=, mesh=, global_batch_size=, pad=, samplers."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.utils import data

import fastload
from fastload import DataLoader
from fastload.dataset import Dataset
from fastload.errors import StateError, UsageError
from fastload.loader import sharding
from fastload.loader.sharding import Topology, topology
from fastload.sampling import permute

COUNT = 53


class World:
    """Stands in for torch.distributed: which rank of how many this process is."""

    def __init__(self) -> None:
        self.topology = Topology()

    def ranks(self, world: int) -> Iterator[int]:
        for rank in range(world):
            self.topology = Topology(rank, world)
            yield rank


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    for module in ("sharding", "dataloader"):
        monkeypatch.setattr(f"fastload.loader.{module}.process_topology", lambda: world.topology)
    return world


def make(ds: Dataset, **options: Any) -> DataLoader[Any]:
    return DataLoader(ds, **{"shuffle": True, "seed": 3, "num_workers": 1, **options})


def order(epoch: int = 0) -> list[int]:
    return permute(range(COUNT), COUNT, 3, epoch).tolist()


def joined(loaders: list[list[tuple[list[int], Any]]]) -> list[list[int]]:
    """Return the global batches that the ranks' batches make, without pads, in the global order."""
    out = []
    for number in range(max(map(len, loaders))):
        samples = []
        for batches in loaders:
            if number < len(batches):
                xs, info = batches[number]
                samples += [
                    (position, x)
                    for position, x, pad in zip(info.positions.tolist(), xs, info.pads.tolist(), strict=True)
                    if not pad
                ]
        out.append([x for _, x in sorted(samples)])
    return out


def with_info(loader: DataLoader[Any]) -> list[tuple[list[int], Any]]:
    return [(batch["x"].tolist(), loader.batch_info) for batch in loader]


def all_ranks(world: World, size: int, ds: Dataset, **options: Any) -> list[list[tuple[list[int], Any]]]:
    out = []
    for _ in world.ranks(size):
        loader = make(ds, **options)
        got = with_info(loader)
        assert len(loader) == len(got)
        out.append(got)
    return out


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("tail", [{}, {"pad": False}, {"drop_last": True}])
def test_global_batches_are_the_same_at_any_world_size(
    ds: Dataset, world: World, size: int, tail: dict[str, Any]
) -> None:
    ranks = all_ranks(world, size, ds, shard=True, global_batch_size=10, **tail)
    expected = [order()[low : low + 10] for low in range(0, COUNT, 10)]
    assert joined(ranks) == (expected[:-1] if "drop_last" in tail else expected)
    for number, batch in enumerate(expected[:-1]):
        sizes = [len(batches[number][0]) for batches in ranks]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == len(batch)
        infos = [batches[number][1] for batches in ranks]
        assert {info.global_samples for info in infos} == {10}
        assert sum(info.weight for info in infos) == pytest.approx(size)
        assert [info.samples for info in infos] == sizes
    if not tail:
        last = [batches[-1] for batches in ranks]
        assert len({len(xs) for xs, _ in last}) == 1
        assert sum(int(info.pads.sum()) for _, info in last) == -3 % size
        assert {info.global_samples for _, info in last} == {3}
        pads = {
            position: x
            for xs, info in last
            for position, x, pad in zip(info.positions.tolist(), xs, info.pads, strict=True)
            if pad
        }
        assert pads == {COUNT + number: order()[number] for number in range(-3 % size)}


def test_batch_size_is_of_one_rank(ds: Dataset, world: World) -> None:
    ranks = all_ranks(world, 4, ds, shard=True, batch_size=4)
    assert joined(ranks) == [order()[low : low + 16] for low in range(0, COUNT, 16)]
    assert [len(xs) for xs, _ in ranks[0]] == [4, 4, 4, 2]
    singles = all_ranks_of_samples(world, ds)
    assert singles == [order()[rank::2] + ([order()[0]] if rank else []) for rank in range(2)]


def all_ranks_of_samples(world: World, ds: Dataset) -> list[list[int]]:
    return [[int(s["x"]) for s in make(ds, batch_size=None, shard=True)] for _ in world.ranks(2)]


def test_few_records(ds: Dataset, world: World) -> None:
    ranks = all_ranks(world, 5, ds[:2], shard=True, batch_size=3, shuffle=False)
    assert [[xs for xs, _ in batches] for batches in ranks] == [[[0]], [[1]], [[0]], [[1]], [[0]]]
    assert [bool(info.pads[0]) for ((_, info),) in ranks] == [False, False, True, True, True]
    assert [info.weight for ((_, info),) in ranks] == [2.5, 2.5, 0, 0, 0]
    uneven = all_ranks(world, 5, ds[:2], shard=True, batch_size=3, shuffle=False, pad=False)
    assert [[xs for xs, _ in batches] for batches in uneven] == [[[0]], [[1]], [], [], []]
    assert all_ranks(world, 5, ds[:0], shard=True, shuffle=False) == [[]] * 5


def test_stats_say_it_too(ds: Dataset, world: World) -> None:
    world.topology = Topology(3, 4)
    loader = make(ds, shard=True, batch_size=20)
    assert loader.batch_info is None
    assert loader.stats()["batch_info"] is None
    list(loader)
    stats = loader.stats()
    assert (stats["position"], stats["samples"], stats["pads"]) == (53, 14, 1)
    assert stats["batch_info"]["positions"].tolist()[-1] == 55
    assert stats["batch_info"]["global_samples"] == 53


def test_the_world_is_read_when_asked(ds: Dataset, world: World) -> None:
    loader = make(ds, shard=True, global_batch_size=10)
    assert (loader.batch_size, len(loader)) == (10, 6)
    world.topology = Topology(1, 4)
    assert (loader.batch_size, len(loader)) == (3, 6)
    assert next(iter(loader))["x"].tolist() == order()[1:10:4]
    by_size = make(ds, shard=True, batch_size=10)
    assert len(by_size) == 2
    world.topology = Topology(0, 1)
    assert len(by_size) == 6


def test_batch_size_and_global_batch_size(ds: Dataset, world: World) -> None:
    world.topology = Topology(0, 4)
    assert len(list(make(ds, shard=True, batch_size=5, global_batch_size=20))) == 3
    assert len(list(make(ds, shard=True, batch_size=3, global_batch_size=10))) == 6
    with pytest.raises(UsageError, match="batch_size is 5 on each of 4 ranks, and global_batch_size 10"):
        iter(make(ds, shard=True, batch_size=5, global_batch_size=10))
    with pytest.raises(UsageError, match="a global batch of 3 samples for 4 ranks"):
        iter(make(ds, shard=True, global_batch_size=3))
    with pytest.raises(UsageError, match="makes no batches"):
        make(ds, batch_size=None, global_batch_size=3)
    with pytest.raises(UsageError, match="global_batch_size is 0"):
        make(ds, global_batch_size=0)
    world.topology = Topology(1, 4)
    assert [len(batch["x"]) for batch in make(ds, global_batch_size=7)][:2] == [7, 7]


def test_a_shuffle_window(ds: Dataset, world: World) -> None:
    ranks = all_ranks(world, 2, ds, shard=True, batch_size=5, shuffle_window="300")
    window = ds.window(300)
    expected = ds.selection.order(3, 0, shuffle=True, window=window).locate(torch.arange(COUNT).numpy())[1]
    assert joined(ranks) == [expected[low : low + 10].tolist() for low in range(0, COUNT, 10)]
    loader = make(ds, shuffle_window="300", batch_size=5)
    assert loader.shuffle_window == "300"
    assert loader.state_dict()["window"] == [window.streams, window.block]
    with pytest.raises(StateError, match="shuffle window"):
        make(ds, batch_size=5).load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="shuffle=True"):
        make(ds, shuffle=False, shuffle_window="300")
    with pytest.raises(UsageError):
        make(ds, shuffle_window="much")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks which files are mapped")
@pytest.mark.parametrize(("nodes", "window"), [(2, "128MB"), (2, None), (4, "64MB")])
def test_with_a_window_a_node_opens_its_own_shards_only(
    backend: str, world: World, tmp_path: Path, nodes: int, window: str | None
) -> None:
    with fastload.Writer(tmp_path / "whole.fl", {"text": fastload.Str()}, shard_size=800) as writer:
        for _ in range(112):
            writer.append({"text": "." * 100})
    opened = []
    for rank in world.ranks(nodes):
        folder = tmp_path / f"{rank}.fl"  # of each node its own: mappings stay
        shutil.copytree(tmp_path / "whole.fl", folder)
        ds = fastload.open(folder)
        assert np.unique(np.diff(ds.sources[0].table.starts)).tolist() == [7]
        loader = DataLoader(
            ds, 4, shuffle=True, seed=3, num_workers=1, shard=True, shuffle_window=window, drop_last=True
        )
        assert len(list(loader)) == 112 // (4 * nodes)
        maps = Path("/proc/self/maps").read_text().split()
        opened.append({Path(name).name for name in maps if name.startswith(f"{folder}/") and "shard" in name})
    counts = [len(names) for names in opened]
    assert counts == [16 if window is None else 16 // nodes] * nodes
    assert len(set().union(*opened)) == 16


def test_sharding_twice(ds: Dataset, world: World) -> None:
    world.topology = Topology(1, 2)
    for kind in (data.DistributedSampler, fastload.DistributedSampler):
        same = make(ds, shuffle=None, sampler=kind(ds, 2, 1, seed=3), shard=True, batch_size=9)
        assert next(iter(same))["x"].tolist() == order()[1:18:2]
        other = make(ds, shuffle=None, sampler=kind(ds, 2, 0), shard=True)
        with pytest.raises(UsageError, match="sharded twice: its DistributedSampler as rank 0 of 2, shard="):
            iter(other)
        with pytest.raises(UsageError, match="sharded twice"):
            iter(make(ds, shuffle=None, sampler=kind(ds, 4, 1), mesh={"dp": 2}))
    with pytest.raises(UsageError, match="list says itself which records"):
        iter(make(ds, shuffle=None, sampler=[1, 2], shard=True))
    assert [batch.tolist() for batch in DataLoader(range(4), shard=True)] == [[1], [3]]  # type: ignore[arg-type]


def test_a_loader_that_is_not_sharded_warns_once(ds: Dataset, world: World) -> None:
    world.topology = Topology(0, 2)
    loader = make(ds)
    with pytest.warns(UserWarning, match="2 ranks, and this loader gives all records to each") as caught:
        [list(loader) for _ in range(2)]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(make(ds, shard=True))
        list(make(ds, mesh={"tp": 2}))
        list(make(ds, shuffle=None, sampler=data.DistributedSampler(ds, 2, 0)))
        list(make(ds, shuffle=None, sampler=[1]))
        world.topology = Topology(1, 2)
        list(make(ds))


def test_a_launched_process_has_to_initialise_first(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = make(ds, shard=True)
    for ask in (len, iter):
        with pytest.raises(UsageError, match="WORLD_SIZE is 4"):
            ask(loader)
    assert loader.state_dict()["position"] == 0
    assert len(make(ds)) == COUNT


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        ({"dp": 4, "tp": 2}, [0, 0, 1, 1, 2, 2, 3, 3]),
        ({"pp": 2, "dp": 4}, [0, 1, 2, 3, 0, 1, 2, 3]),
        ([("dp_replicate", 2), ("cp", 2), ("dp_shard", 2)], [0, 1, 0, 1, 2, 3, 2, 3]),
        ({"tp": 8}, [0] * 8),
        (({"rows": 2, "columns": 4}, ("columns",)), [0, 1, 2, 3] * 2),
        (({"dp": 2, "tp": 4}, ["tp"]), [0, 1, 2, 3] * 2),
    ],
)
def test_meshes_by_name(world: World, mesh: Any, expected: list[int]) -> None:
    got = [topology(False, mesh, None) for _ in world.ranks(8)]
    assert [one.rank for one in got] == expected
    assert {one.world for one in got} == {max(expected) + 1}


def test_meshes_that_are_refused(world: World) -> None:
    world.topology = Topology(0, 8)
    for mesh, message in [
        ({"dp": 4, "rows": 2}, "dimension 'rows'"),
        ({"dp": 4}, "has 4 ranks, torch.distributed 8"),
        (({"dp": 8}, ("ddp",)), "not all of ddp"),
        (8, "is no mesh"),
        ({"dp": "x"}, "is no mesh"),
    ]:
        with pytest.raises(UsageError, match=message):
            topology(False, mesh, None)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_device_meshes(ds: Dataset) -> None:
    assert sharding.process_topology() == Topology(0, 1)
    named = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    assert topology(False, named, None) == topology(False, named["dp"], None) == Topology(0, 1)
    assert topology(False, init_device_mesh("cpu", (1,)), None) == Topology(0, 1)
    with pytest.raises(UsageError, match="without names"):
        topology(False, init_device_mesh("cpu", (1, 1)), None)
    assert len(list(make(ds, mesh=named, batch_size=10))) == 6


class FourRanks:
    """What is asked of a DeviceMesh, seen from one of 2 x 4 ranks."""

    mesh_dim_names = ("dp_shard", "tp")
    shape = (2, 4)

    def __init__(self, coordinate: list[int] | None) -> None:
        self.coordinate = coordinate

    def get_coordinate(self) -> list[int] | None:
        return self.coordinate


def test_a_rank_of_a_device_mesh() -> None:
    assert topology(False, FourRanks([1, 3]), None) == Topology(1, 2)
    assert topology(False, (FourRanks([1, 3]), ("tp",)), None) == Topology(3, 4)
    with pytest.raises(UsageError, match="not part of the mesh"):
        topology(False, FourRanks(None), None)
