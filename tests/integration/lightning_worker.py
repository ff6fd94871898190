"""A process of test_training_frameworks.py. usage: lightning_worker.py FOLDER KIND..."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch

import fastload
from fastload.integrations.lightning import setup_dataloaders
from tests.integration.frameworks import (
    BATCH,
    COUNT,
    Trace,
    augmented,
    check,
    loss_of,
    make_data,
    make_loader,
    make_model,
    note,
    of_all_ranks,
    world,
)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()
        self.trace: Trace = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        note(self.trace, self.current_epoch, batch)
        return loss_of(self.model, batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)

    def predict_step(self, batch: Any, number: int) -> Any:
        return batch["number"]


class Stop(lightning.Callback):
    """Saves after a step, and stops there."""

    def __init__(self, at: tuple[int, int], path: Path) -> None:
        self.at, self.path = at, path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        if (trainer.current_epoch, number) == self.at:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def make_trainer(*callbacks: Any, **arguments: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        accelerator="cpu",
        devices=world(),
        strategy="ddp" if world() > 1 else "auto",
        callbacks=list(callbacks),
        enable_checkpointing=False,
        **{"max_epochs": 2, **quiet, **arguments},
    )


def train(loader: Any, *callbacks: Any, resume: Path | None = None) -> Trace:
    module = Module()
    make_trainer(*callbacks).fit(module, loader, ckpt_path=None if resume is None else str(resume))
    return module.trace


def check_trainer(make: Any, folder: Path) -> None:
    """Stop in the middle of an epoch, resume, and compare."""
    path = folder / "lightning.ckpt"
    whole = train(make())
    before = train(make(), Stop((1, 2), path))
    after = train(make(), resume=path)
    check(whole, before, after)


class SaveAtEnd(lightning.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(self.path)


def check_epochs_end(make: Any, folder: Path) -> None:
    """Resume from a checkpoint of the end of an epoch."""
    path = folder / "end.ckpt"
    whole = train(make(), SaveAtEnd(path))
    after = train(make(), resume=path)
    assert after == [step for step in whole if step[0] == 1], (whole, after)


def check_prediction(path: Path) -> None:
    """Lightning rebuilds a loader for prediction, with a batch sampler of its own."""
    for shard in (False, True):
        loader = fastload.DataLoader(augmented(path), batch_size=BATCH, shard=shard)
        found = make_trainer().predict(Module(), loader)
        numbers = of_all_ranks([int(n) for batch in found or [] for n in batch])
        assert set(numbers) == set(range(COUNT)), numbers


def fabric_train(fabric: Any, loader: Any, folder: Path, stop: tuple[int, int] | None, resume: bool) -> Trace:
    trace: Trace = []
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.01))
    loader = setup_dataloaders(fabric, loader)
    state = {"model": model, "optimizer": optimizer, "loader": loader, "epoch": 0}
    if resume:
        fabric.load(folder / "fabric.ckpt", state)
    for epoch in range(state["epoch"], 2):
        for step, batch in enumerate(loader):
            note(trace, epoch, batch)
            fabric.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            if stop == (epoch, step):
                fabric.save(folder / "fabric.ckpt", {**state, "epoch": epoch})
                return trace
    return trace


def check_fabric(make: Any, folder: Path) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=world(), strategy="ddp" if world() > 1 else "auto")
    fabric.launch()
    whole = fabric_train(fabric, make(), folder, None, False)
    before = fabric_train(fabric, make(), folder, (1, 2), False)
    after = fabric_train(fabric, make(), folder, None, True)
    check(whole, before, after)


def main() -> None:
    folder, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    fabric = lightning.Fabric(accelerator="cpu", devices=world(), strategy="ddp" if world() > 1 else "auto")
    fabric.launch()
    if fabric.is_global_zero:
        make_data(Path(folder))
    fabric.barrier()
    path = Path(folder) / "data.fl"
    for kind in kinds:
        for shard in (True, False):

            def make(kind: str = kind, shard: bool = shard) -> Any:
                return make_loader(kind, path, shard=shard)

            check_trainer(make, Path(folder))
            if shard:
                check_epochs_end(make, Path(folder))
                check_fabric(make, Path(folder))
    check_prediction(path)
    print("all is well")


if __name__ == "__main__":
    main()
