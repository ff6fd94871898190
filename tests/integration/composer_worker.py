"""A process of test_training_frameworks.py. usage: composer_worker.py FOLDER KIND..."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from composer import Callback, ComposerModel, State, Trainer
from composer.loggers import Logger
from composer.utils import dist

from tests.integration.frameworks import (
    Trace,
    check_resuming,
    loss_of,
    make_data,
    make_loader,
    make_model,
    note,
)


class Model(ComposerModel):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def forward(self, batch: Any) -> Any:
        return self.model(batch["image"])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return loss_of(lambda _: outputs, batch)


class KeepPlace(Callback):  # type: ignore[misc]
    """Keeps the loader's place in checkpoints."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.loader.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


class Tracing(Callback):  # type: ignore[misc]
    def __init__(self, stop_at: tuple[int, int] | None, folder: Path) -> None:
        self.trace: Trace = []
        self._stop_at, self._folder = stop_at, folder

    def before_forward(self, state: State, logger: Logger) -> None:
        note(self.trace, int(state.timestamp.epoch), state.batch)

    def batch_end(self, state: State, logger: Logger) -> None:
        if self._stop_at == (int(state.timestamp.epoch), int(state.timestamp.batch_in_epoch) - 1):
            state.stop_training()


def train(kind: str, path: Path, *, stop_at: tuple[int, int] | None, resume: bool, folder: Path) -> Trace:
    loader = make_loader(kind, path, shard=True)
    tracing = Tracing(stop_at, folder)
    model = Model()
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        optimizers=torch.optim.SGD(model.parameters(), 0.01),
        max_duration="2ep",
        device="cpu",
        progress_bar=False,
        callbacks=[KeepPlace(loader), tracing],
        spin_dataloaders=False,
        save_folder=None if stop_at is None else str(folder),
        save_interval="1ba",
        save_filename="ba{batch}.pt",
        save_latest_filename="latest.pt",
        save_overwrite=True,
        load_path=str(folder / "latest.pt") if resume else None,
    )
    trainer.fit()
    trainer.close()
    return tracing.trace


def main() -> None:
    folder, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    os.environ.setdefault("NODE_RANK", "0")  # which Composer's own launcher sets, and torchrun does not
    dist.initialize_dist("cpu", timeout=60)
    if dist.get_global_rank() == 0:
        make_data(Path(folder))
    dist.barrier()
    path = Path(folder) / "data.fl"
    for kind in kinds:
        check_resuming(train, kind, path)
    print("all is well")


if __name__ == "__main__":
    main()
