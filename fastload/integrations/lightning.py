"""Lightning Fabric. Lightning's Trainer needs no adapter (docs/integrations.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from fastload.errors import UsageError
from fastload.integrations.rebuild import rebuilt, sharded_arguments
from fastload.loader import DataLoader

__all__ = ["FabricLoader", "setup_dataloaders"]

T = TypeVar("T")


class FabricLoader(Generic[T]):
    """A DataLoader whose batches come on Fabric's device. Everything else is asked of the loader.

    ``fabric.save`` and ``fabric.load`` take it as part of a state: ``{"model": model, "loader": loader}``.
    """

    def __init__(self, loader: DataLoader[T], fabric: Any, move: bool) -> None:
        self._loader, self._fabric, self._move = loader, fabric, move

    def __iter__(self) -> Iterator[T]:
        batches = iter(self._loader)
        return map(self._fabric.to_device, batches) if self._move else batches

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":  # while it is unpickled there is none
            raise AttributeError(name)
        return getattr(self._loader, name)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where ``state_dict`` was taken."""
        self._loader.load_state_dict(state_dict)


def setup_dataloaders(fabric: Any, *loaders: DataLoader[Any], move_to_device: bool = True) -> Any:
    """Return fastload loaders set up for a ``lightning.Fabric``, in place of ``fabric.setup_dataloaders``.

    Ranks share the dataset out (``shard=True``), and batches go to Fabric's device. One loader for one,
    else a list. Fabric's own wrapper counts epochs from the start of the program and tells the sampler, so
    that a loader that is resumed would begin at epoch 0 again: this one leaves epochs to the loader.
    Raises UsageError for what is no fastload DataLoader.
    """
    ready = []
    for loader in loaders:
        if not isinstance(loader, DataLoader):
            raise UsageError(
                f"{type(loader).__name__} is no fastload DataLoader",
                hint="give it to fabric.setup_dataloaders",
            )
        changes = sharded_arguments(loader)
        shared = rebuilt(loader, DataLoader, **changes) if changes else loader
        ready.append(FabricLoader(shared, fabric, move_to_device))
    return ready[0] if len(ready) == 1 else ready
