"""Hugging Face's Trainer: a mixin that trains from fastload's loader and resumes it exactly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import data

from fastload.dataset import Dataset
from fastload.errors import StateError, UsageError
from fastload.integrations.accelerate import PreparedLoader, prepare
from fastload.loader import DataLoader
from fastload.loader.recognise import unwrap
from fastload.staging import pin_available

__all__ = ["TrainerMixin"]

# The Trainer is behind the mixin, and not imported here: to a type checker it is anything.
if TYPE_CHECKING:
    _Trainer: Any = object
else:
    _Trainer = object


class TrainerMixin(_Trainer):  # type: ignore[misc]
    """Put before ``transformers.Trainer``: ``class MyTrainer(TrainerMixin, Trainer): ...``.

    Training batches come from fastload's DataLoader, made of the TrainingArguments: their batch size,
    workers, ``dataloader_drop_last``, and ``data_seed`` or ``seed``. A fastload dataset without a data
    collator of yours is loaded natively, ``label`` is called ``labels`` as the default collator does it,
    and columns that the model does not take are not read (``remove_unused_columns``). Override
    :meth:`make_train_loader` for other arguments.

    Checkpoints hold the loader's state in ``fastload_RANK.pt``. A run that is resumed from one goes on at
    its position, without loading what came before. With ``ignore_data_skip`` it begins the epoch anew.

    Evaluation and prediction are the Trainer's own, which take fastload datasets as they are.
    """

    train_loader: PreparedLoader[Any] | None = None

    def get_train_dataloader(self) -> Any:
        if self.train_dataset is None:
            raise UsageError("the Trainer has no train_dataset", hint="give it train_dataset=")
        self.train_loader = prepare(self.accelerator, self.make_train_loader(self.train_dataset))
        return self.train_loader

    def make_train_loader(self, dataset: Any, **changes: Any) -> DataLoader[Any]:
        """Return the DataLoader to train from, of the TrainingArguments but for ``changes``."""
        args = self.args
        sampler = self._get_train_sampler()
        ordinary = type(sampler) in (data.RandomSampler, data.SequentialSampler)
        arguments: dict[str, Any] = {
            "batch_size": self._train_batch_size,
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory and pin_available(),
            "drop_last": args.dataloader_drop_last,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "persistent_workers": args.dataloader_persistent_workers,
            "seed": args.seed if args.data_seed is None else args.data_seed,
        }
        if sampler is not None:
            shuffle = {"shuffle": type(sampler) is data.RandomSampler}
            arguments |= shuffle if ordinary else {"sampler": sampler}
        native = unwrap(dataset)
        if native is not None and self._collates_by_default():
            dataset = self._native_inputs(native)
        else:
            collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
            arguments["collate_fn"] = collate
        return DataLoader(dataset, **{**arguments, **changes})

    def _collates_by_default(self) -> bool:
        from transformers import default_data_collator

        return self.data_collator is default_data_collator

    def _native_inputs(self, dataset: Dataset) -> Dataset:
        """Return a view whose batches are what the model takes."""
        if dataset.look.tuples:
            raise UsageError("the model takes arguments by name", hint="leave out as_tuple")
        if not self.args.remove_unused_columns:
            return dataset.map_batches(_Inputs(None))
        self._set_signature_columns_if_needed()
        taken = frozenset(self._signature_columns)
        if not dataset.look.maps and not dataset.look.batch_maps:
            columns = [name for name in dataset.look.columns if name in taken]
            if not columns:
                raise UsageError(
                    f"the model takes none of the fields {', '.join(dataset.look.columns)}",
                    hint="rename them with map(), or set remove_unused_columns=False",
                )
            dataset = dataset.select_columns(columns)
        return dataset.map_batches(_Inputs(taken))

    # --- resuming --------------------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with _without_skipping():
            return super().train(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self.train_loader is not None:
            path = _state_path(output_dir, self.args.process_index)
            torch.save(self.train_loader.state_dict(), path)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or self.args.ignore_data_skip or self.train_loader is None:
            return
        own, first = (_state_path(checkpoint, rank) for rank in (self.args.process_index, 0))
        found = own if own.exists() else first  # most states are the same on all ranks
        if not found.exists():
            raise StateError(
                f"{checkpoint} has no state of fastload's loader",
                hint="set ignore_data_skip=True to begin its epoch anew",
            )
        self.train_loader.load_state_dict(torch.load(found, weights_only=True))


def _state_path(folder: str, rank: int) -> Path:
    return Path(os.fspath(folder)) / f"fastload_{rank}.pt"


@contextlib.contextmanager
def _without_skipping() -> Iterator[None]:
    """Let the Trainer keep a loader that has its place already, where it would skip batches."""
    from transformers import trainer

    skip = trainer.skip_first_batches

    def skip_or_keep(loader: Any, num_batches: int = 0) -> Any:
        return loader if isinstance(loader, PreparedLoader) else skip(loader, num_batches)

    trainer.skip_first_batches = skip_or_keep
    try:
        yield
    finally:
        trainer.skip_first_batches = skip


class _Inputs:
    """Names a batch's fields as models want them, and leaves out what they don't take."""

    def __init__(self, taken: frozenset[str] | None) -> None:
        self._taken = taken

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in batch.items() if self._taken is None or name in self._taken}
        for name in ("label", "label_ids"):
            if name in kept and "labels" not in kept:
                kept["labels"] = kept.pop(name)
        return kept
