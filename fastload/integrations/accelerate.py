"""Hugging Face Accelerate: fastload's loader in place of the one that ``accelerator.prepare`` would build."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from fastload.errors import UsageError
from fastload.integrations.rebuild import rebuilt, sharded_arguments
from fastload.loader import DataLoader
from fastload.loader.course import BatchInfo

__all__ = ["PreparedLoader", "prepare"]

T = TypeVar("T")


class PreparedLoader(DataLoader[T]):
    """A DataLoader that tells Accelerate what it wants to know. Made by :func:`prepare`.

    It reads one batch ahead, as Accelerate's own does, to know the last one. State and ``batch_info`` are
    those of the batch that was given out.
    """

    # What Accelerate looks for.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True
    end_of_dataloader = False
    remainder = -1
    gradient_state: Any = None
    device: Any = None
    place: Callable[[Any], Any] | None = None

    _shown: tuple[dict[str, Any], BatchInfo | None] | None = None

    @property
    def total_batch_size(self) -> int:
        """Samples of all ranks in a batch."""
        layout = self._layout()
        return (self.batch_size or 1) if layout is None else layout.share().global_batch

    @property
    def total_dataset_length(self) -> int:
        """Records of the dataset."""
        return len(self.dataset)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        batches = super().__iter__()
        self._shown = None
        return self._given_out(batches)

    def _given_out(self, batches: Iterator[T]) -> Iterator[T]:
        self.end_of_dataloader, self.remainder = False, -1
        self.gradient_state._add_dataloader(self)
        try:
            self._shown = super().state_dict(), None
            ahead = next(batches, _END)
            while ahead is not _END:
                batch: Any = ahead if self.place is None else self.place(ahead)
                shown = super().state_dict(), super().batch_info
                ahead = next(batches, _END)
                if ahead is _END:
                    shown = super().state_dict(), shown[1]
                    self.end_of_dataloader = True
                    self.remainder = -1 if shown[1] is None else shown[1].global_samples
                self._shown = shown
                yield batch
        finally:
            self.gradient_state._remove_dataloader(self)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() if self._shown is None else self._shown[0]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._shown = None

    @property
    def batch_info(self) -> BatchInfo | None:
        return super().batch_info if self._shown is None else self._shown[1]


_END: Any = object()


def prepare(
    accelerator: Any, loader: DataLoader[T], *, device_placement: bool | None = None
) -> PreparedLoader[T]:
    """Return ``loader`` prepared for an ``accelerate.Accelerator``, as ``accelerator.prepare(loader)`` would.

    The loader stays fastload's. Its dataset is shared out among the processes (``shard=True``, or the
    accelerator's device mesh), batches go to ``accelerator.device``, gradient accumulation and
    ``gather_for_metrics`` know the last batch, and ``save_state`` and ``load_state`` include the place in
    the epoch. ``split_batches`` and ``even_batches`` of the accelerator are followed. Ranks take records
    side by side, not every W-th, so that what ``gather_for_metrics`` returns is in the dataset's order.

    Raises UsageError for what is no fastload DataLoader, and with ``dispatch_batches``.
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"{type(loader).__name__} is no fastload DataLoader", hint="give it to accelerator.prepare"
        )
    if isinstance(loader, PreparedLoader):
        accelerator.prepare_data_loader(loader)
        return loader
    if accelerator.dispatch_batches:
        raise UsageError(
            "dispatch_batches lets one process load for all, and fastload loads in each",
            hint="leave it out of DataLoaderConfiguration",
        )
    changes = sharded_arguments(loader, getattr(accelerator, "torch_device_mesh", None))
    if changes:
        changes["pad"] = loader.pad and bool(accelerator.even_batches)
        if accelerator.split_batches and loader.global_batch_size is None and loader.batch_size is not None:
            changes.update(global_batch_size=loader.batch_size, batch_size=1)
    prepared: PreparedLoader[T] = rebuilt(loader, PreparedLoader, **changes)
    prepared._blocks = True
    prepared.gradient_state = accelerator.gradient_state
    if accelerator.device_placement if device_placement is None else device_placement:
        prepared.device = accelerator.device
        prepared.place = _Placement(accelerator.device, bool(accelerator.non_blocking))
    accelerator.prepare_data_loader(prepared)  # which notes it for save_state and load_state
    return prepared


class _Placement:
    """Moves a batch to a device, as Accelerate does."""

    def __init__(self, device: Any, non_blocking: bool) -> None:
        self._device, self._non_blocking = device, non_blocking

    def __call__(self, batch: Any) -> Any:
        from accelerate.utils import send_to_device

        return send_to_device(batch, self._device, non_blocking=self._non_blocking)
