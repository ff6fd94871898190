"""A process of test_training_frameworks.py. usage: deepspeed_worker.py FOLDER KIND..."""

from __future__ import annotations

import sys
from pathlib import Path

import deepspeed
import torch

from tests.integration.frameworks import (
    BATCH,
    COUNT,
    Trace,
    augmented,
    check_resuming,
    loss_of,
    make_data,
    make_loader,
    make_model,
    note,
    of_all_ranks,
    world,
)

CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
}


def train(kind: str, path: Path, *, stop_at: tuple[int, int] | None, resume: bool, folder: Path) -> Trace:
    trace: Trace = []
    model = make_model()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    loader = make_loader(kind, path, shard=True)
    if resume:
        _, client_state = engine.load_checkpoint(str(folder))
        loader.load_state_dict(client_state["loader"])
    for epoch in range(1 if resume else 0, 2):
        for step, batch in enumerate(loader):
            note(trace, epoch, batch)
            engine.backward(loss_of(engine, batch))
            engine.step()
            if stop_at == (epoch, step):
                engine.save_checkpoint(str(folder), client_state={"loader": loader.state_dict()})
                return trace
    return trace


def check_its_own(path: Path) -> None:
    """DeepSpeed's own loader over a fastload dataset: each record once, other draws in each epoch."""
    model = make_model()
    _, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG, training_data=augmented(path)
    )
    seen: list[Trace] = []
    for _ in range(2):
        trace: Trace = []
        for batch in loader:
            note(trace, 0, batch)
        assert set(of_all_ranks([n for _, got, _ in trace for n in got])) == set(range(COUNT))
        seen.append(trace)
    assert not {pixels for _, _, pixels in seen[0]} & {pixels for _, _, pixels in seen[1]}


def main() -> None:
    folder, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    if torch.distributed.get_rank() == 0:
        make_data(Path(folder))
    torch.distributed.barrier()
    path = Path(folder) / "data.fl"
    for kind in kinds:
        check_resuming(train, kind, path)
    check_its_own(path)
    assert torch.distributed.get_world_size() == world()
    torch.distributed.destroy_process_group()
    print("all is well")


if __name__ == "__main__":
    main()
