"""Train on any number of processes, be stopped at any time, and go on with another number of them.

    torchrun --nproc-per-node 2 examples/resume.py run
    torchrun --nproc-per-node 4 examples/resume.py run      # after a stop: goes on where the last one was

Ctrl-C, or SIGTERM as spot instances send it, ends the run after the step at hand, with a checkpoint. Even
if it is killed, the batches from the last checkpoint on are the same again: the same records with the same
augmentation, at any number of processes.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import fastload
from fastload import transforms as T

GLOBAL_BATCH = 10
"""Samples of all processes in one step: what training depends on, so it stays when their number changes."""


def make_dataset(path: Path, count: int = 64) -> None:
    """Write small random images of four classes, each with its number."""
    random = np.random.default_rng(0)
    schema = {
        "number": fastload.Scalar("int64"),
        "image": fastload.Image(),
        "label": fastload.Label(["red", "green", "blue", "grey"]),
    }
    with fastload.Writer(path, schema, shard_size="16KB") as writer:
        for number in range(count):
            image = random.integers(0, 128, (32, 32, 3), dtype=np.uint8)
            image[..., number % 4 : number % 4 + 1] += 127
            writer.append({"number": number, "image": image, "label": number % 4})


def make_loader(path: Path, mesh: Any = None) -> fastload.DataLoader[Any]:
    """Return the training loader. Nothing in it depends on how many processes there are.

    With tensor or pipeline parallelism give the DeviceMesh.
    """
    floats = [T.ToDtype(torch.float32, scale=True), T.Normalize((0.5,) * 3, (0.5,) * 3)]
    ds = fastload.open(path).transform(image=[T.RandomResizedCrop(16), T.RandomHorizontalFlip(), *floats])
    return fastload.DataLoader(
        ds, global_batch_size=GLOBAL_BATCH, shuffle=True, num_workers=1, seed=0, shard=True, mesh=mesh
    )


def save(checkpoint: Path, parts: dict[str, Any]) -> None:
    """Write a checkpoint that is there whole or not at all. One rank is enough: all have the same state."""
    if dist.get_rank() == 0:
        partial = checkpoint.with_suffix(".partial")
        torch.save({name: part.state_dict() for name, part in parts.items()}, partial)
        os.replace(partial, checkpoint)


def stop_asked(stop: list[int]) -> bool:
    """Return whether any process was asked to stop: all of them have to leave after the same step."""
    flag = torch.tensor([len(stop)])
    dist.all_reduce(flag)
    return bool(flag.item())


def train(folder: Path, epochs: int, save_every: int) -> None:
    """Train from the last checkpoint in ``folder``, if there is one, until ``epochs`` are over."""
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop.append(number))
    loader = make_loader(folder / "data.fl")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts: dict[str, Any] = {"network": network, "optimizer": optimizer, "loader": loader}
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        for name, state in torch.load(checkpoint).items():
            parts[name].load_state_dict(state)
    first = loader.state_dict()["epoch"]
    step, loss = 0, torch.zeros(())
    for epoch in range(first, epochs):
        loader.set_epoch(epoch)  # the epoch of the checkpoint goes on where that was taken
        for batch in loader:
            info = loader.batch_info
            assert info is not None
            real = torch.from_numpy(~info.pads)
            scores = model(batch["image"][real])
            loss = nn.functional.cross_entropy(scores, batch["label"][real], reduction="sum")
            loss = loss / info.global_samples
            optimizer.zero_grad()
            total = loss * info.world  # gradients are averaged over the ranks
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            leave = stop_asked(stop)
            if leave or step % save_every == 0:
                save(checkpoint, parts)
            if leave:
                return
        if step and dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    save(checkpoint, parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the data and the checkpoint are")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=5, help="steps between checkpoints")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0 and not (arguments.folder / "data.fl").exists():
        arguments.folder.mkdir(parents=True, exist_ok=True)
        make_dataset(arguments.folder / "data.fl")
    dist.barrier()
    train(arguments.folder, arguments.epochs, arguments.save_every)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
