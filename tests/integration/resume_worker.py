"""A process of test_resume.py: trains, writes down every sample, saves, and may kill itself.

usage: resume_worker.py FOLDER LOG EPOCHS TP KILL_STEP KILL_RANK

TP ranks each work on the same records, as in tensor parallelism; all but the first of them write their log
beside.

Gradients are averaged and applied by hand: DistributedDataParallel and torch.optim would load the compiler,
which takes longer than the whole run.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from examples.resume import make_loader

SAVE_EVERY = 3


def step(network: nn.Module, batch: dict[str, torch.Tensor], info: Any, copies: int) -> None:
    real = torch.from_numpy(~info.pads)
    scores = network(batch["image"][real])
    loss = nn.functional.cross_entropy(scores, batch["label"][real], reduction="sum") / info.global_samples
    network.zero_grad()
    loss.backward()
    with torch.no_grad():
        for weights in network.parameters():
            assert weights.grad is not None
            dist.all_reduce(weights.grad)
            weights -= 0.1 * weights.grad / copies


def lines_of(batch: dict[str, torch.Tensor], info: Any) -> str:
    text = ""
    for place, position in enumerate(info.positions.tolist()):
        if not info.pads[place]:
            pixels = hashlib.sha256(batch["image"][place].numpy().tobytes()).hexdigest()[:16]
            line = [info.epoch, position, info.global_samples, int(batch["number"][place]), pixels]
            text += json.dumps(line) + "\n"
    return text


def main() -> None:
    folder, log, epochs, copies, kill_step, kill_rank = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, steps, mesh = dist.get_rank(), 0, None
    if int(copies) > 1:
        sizes = (dist.get_world_size() // int(copies), int(copies))
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
        log += "" if mesh.get_local_rank("tp") == 0 else "-copy"
    loader = make_loader(Path(folder) / "data.fl", mesh)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))
    checkpoint = Path(folder) / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        network.load_state_dict(saved["network"])
        loader.load_state_dict(saved["loader"])
    with open(f"{log}.{rank}", "w", buffering=1) as lines:
        for epoch in range(loader.state_dict()["epoch"], int(epochs)):
            loader.set_epoch(epoch)
            for batch in loader:
                lines.write(lines_of(batch, loader.batch_info))
                if steps == int(kill_step) and rank == int(kill_rank):
                    os.kill(os.getpid(), signal.SIGKILL)
                step(network, batch, loader.batch_info, int(copies))
                steps += 1
                if steps % SAVE_EVERY == 0 and rank == 0:
                    torch.save(
                        {"network": network.state_dict(), "loader": loader.state_dict()}, f"{checkpoint}.new"
                    )
                    os.replace(f"{checkpoint}.new", checkpoint)
    weights = torch.cat([weights.flatten() for weights in network.parameters()]).tolist()
    if rank == 0:
        Path(f"{log}-weights.json").write_text(json.dumps(weights))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
