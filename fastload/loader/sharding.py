"""Which share of the order this process takes: torch.distributed, a device mesh, or a sampler."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import data

from fastload import _config
from fastload.errors import UsageError

__all__ = ["DATA_DIMENSIONS", "MODEL_DIMENSIONS", "Topology", "process_topology", "topology"]

DATA_DIMENSIONS = ("dp", "data", "dp_replicate", "dp_shard", "ddp", "fsdp", "replicate", "shard")
"""Names of the dimensions of a mesh along which ranks take different records."""

MODEL_DIMENSIONS = (
    *("tp", "tensor", "model", "pp", "pipe", "pipeline", "cp", "context"),
    *("sp", "sequence", "ep", "expert"),
)
"""Names of those along which ranks work on the same records."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """This process's number among those that take different records, and how many these are."""

    rank: int = 0
    world: int = 1

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world}"


def process_topology() -> Topology:
    """Return rank and world size of torch.distributed; one process alone where it is not initialised."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return Topology(distributed.get_rank(), distributed.get_world_size())
    return Topology()


def topology(shard: bool, mesh: Any, sampler: object) -> Topology:
    """Return what a loader with these arguments takes, as things are now.

    Raises UsageError where two of them contradict each other, or before torch.distributed is initialised.
    """
    asked = _of_mesh(mesh) if mesh is not None else _of_process() if shard else None
    if isinstance(sampler, data.DistributedSampler):
        sampled = Topology(int(sampler.rank), int(sampler.num_replicas))
        if asked is not None and asked != sampled:
            raise UsageError(
                f"the loader is sharded twice: its DistributedSampler as {sampled}, "
                f"{'mesh' if mesh is not None else 'shard'}= as {asked}",
                hint="leave one of them out",
            )
        return sampled
    return asked or Topology()


def _of_process() -> Topology:
    launched = _config.launched_world()
    distributed = torch.distributed
    if launched > 1 and not (distributed.is_available() and distributed.is_initialized()):
        raise UsageError(
            f"a sharded loader runs before torch.distributed is initialised, and WORLD_SIZE is {launched}",
            hint="call init_process_group first: until then each rank would take everything",
        )
    return process_topology()


def _of_mesh(mesh: Any) -> Topology:
    chosen: Sequence[str] | None = None
    if isinstance(mesh, tuple) and len(mesh) == 2 and _are_names(mesh[1]):
        mesh, chosen = mesh
    names, sizes, coordinate = _axes(mesh)
    if chosen is not None and not set(chosen) <= set(names):
        raise UsageError(f"the mesh has dimensions {', '.join(names)}, not all of {', '.join(chosen)}")
    rank, world = 0, 1
    for name, size, place in zip(names, sizes, coordinate, strict=True):
        if _takes_its_own(name, chosen):
            rank, world = rank * size + place, world * size
    return Topology(rank, world)


def _are_names(value: object) -> bool:
    return isinstance(value, (tuple, list)) and bool(value) and all(isinstance(name, str) for name in value)


def _axes(mesh: Any) -> tuple[Sequence[str], Sequence[int], Sequence[int]]:
    """Return the names and sizes of a mesh's dimensions, and this process's place along each."""
    if hasattr(mesh, "get_coordinate") and hasattr(mesh, "mesh_dim_names"):  # a torch DeviceMesh
        sizes, names = tuple(mesh.shape), mesh.mesh_dim_names
        if names is None and len(sizes) == 1:
            names = ("data",)
        if names is None:
            raise UsageError(
                f"the mesh has {len(sizes)} dimensions without names",
                hint="make it with mesh_dim_names, such as ('dp', 'tp')",
            )
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise UsageError("this process is not part of the mesh", hint="load on the mesh's ranks only")
        return names, sizes, coordinate
    try:
        pairs = dict(mesh.items() if isinstance(mesh, Mapping) else mesh)
        names, sizes = tuple(map(str, pairs)), tuple(int(size) for size in pairs.values())
    except (TypeError, ValueError):
        raise UsageError(
            f"mesh={mesh!r} is no mesh",
            hint='give a torch DeviceMesh, or names and sizes as {"dp": 4, "tp": 2}',
        ) from None
    process = _of_process()
    if math.prod(sizes) != process.world or min(sizes, default=1) < 1:
        raise UsageError(
            f"mesh={mesh!r} has {math.prod(sizes)} ranks, torch.distributed {process.world}",
            hint="let the product of its sizes be the world size",
        )
    return names, sizes, [int(place) for place in np.unravel_index(process.rank, sizes)] if sizes else []


def _takes_its_own(name: str, chosen: Sequence[str] | None) -> bool:
    if chosen is not None:
        return name in chosen
    if name not in DATA_DIMENSIONS and name not in MODEL_DIMENSIONS:
        raise UsageError(
            f"whether ranks along the mesh's dimension {name!r} take the same records is not known",
            hint=f"name all dimensions along which they differ: mesh=(mesh, ({name!r},)) or without it",
        )
    return name in DATA_DIMENSIONS
