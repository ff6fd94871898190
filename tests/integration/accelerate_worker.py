"""A process of test_training_frameworks.py. usage: accelerate_worker.py FOLDER KIND..."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.utils import data

from fastload.integrations.accelerate import prepare
from tests.integration.frameworks import (
    BATCH,
    COUNT,
    Plain,
    Trace,
    augmented,
    check_resuming,
    loss_of,
    make_data,
    make_loader,
    make_model,
    note,
    world,
)


def make_accelerator(**arguments: Any) -> Accelerator:
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return Accelerator(cpu=True, **arguments)


def train(kind: str, path: Path, *, stop_at: tuple[int, int] | None, resume: bool, folder: Path) -> Trace:
    trace: Trace = []
    accelerator = make_accelerator()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = prepare(accelerator, make_loader(kind, path))
    assert loader.stats()["why_not_native"] is None or kind == "plain"
    if resume:
        accelerator.load_state(str(folder))
    for epoch in range(1 if resume else 0, 2):
        for step, batch in enumerate(loader):
            note(trace, epoch, batch)
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            if stop_at == (epoch, step):
                accelerator.wait_for_everyone()
                accelerator.save_state(str(folder))
                accelerator.wait_for_everyone()
                return trace
    return trace


def flushes(accelerator: Accelerator, loader: Any) -> list[bool]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    found = []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
            found.append(bool(accelerator.sync_gradients))
    return found


def check_accumulation(kind: str, path: Path) -> None:
    accelerator = make_accelerator(gradient_accumulation_steps=3)
    batch_size = 4 // world()
    count = 10 * batch_size * world() - 1  # ten batches, of which the last is not full
    ours = prepare(accelerator, make_loader(kind, path, count=count, batch_size=batch_size, num_workers=0))
    torchs = accelerator.prepare(data.DataLoader(Plain(count), batch_size=batch_size))
    assert len(ours) == len(torchs) == 10
    expected = flushes(accelerator, torchs)
    assert expected == ([False, False, True] * 3 + [True]) * 2
    assert flushes(accelerator, ours) == expected
    assert not accelerator.gradient_state.in_dataloader


def check_metrics(kind: str, path: Path) -> None:
    accelerator = make_accelerator()
    for batch_size in (BATCH, 5, 16, 64):
        loader = prepare(accelerator, make_loader(kind, path, batch_size=batch_size, shuffle=False))
        for _ in range(2):
            gathered = [accelerator.gather_for_metrics(batch["number"]) for batch in loader]
            assert torch.cat(gathered).tolist() == list(range(COUNT)), (batch_size, gathered)


def check_uneven(path: Path) -> None:
    """A loader that is left early is in the place of the last batch that was given out."""
    accelerator = make_accelerator()
    loader = prepare(accelerator, make_loader("native", path))
    batches = iter(loader)
    assert loader.state_dict()["position"] == 0
    for number in range(1, 4):
        next(batches)
        assert loader.state_dict()["position"] == number * BATCH * world()
        assert loader.batch_info is not None
        assert loader.batch_info.positions.max() < number * BATCH * world()
    del batches
    assert loader.state_dict()["position"] == 3 * BATCH * world()
    assert not accelerator.gradient_state.in_dataloader


def check_their_own(path: Path) -> None:
    """Accelerate's own loader over a fastload dataset: each record once, other draws in each epoch."""
    accelerator = make_accelerator()
    dataset = augmented(path)
    theirs = accelerator.prepare(data.DataLoader(dataset, batch_size=BATCH, num_workers=1, shuffle=True))
    seen: list[Trace] = []
    for _ in range(2):
        trace: Trace = []
        for batch in theirs:
            note(trace, 0, batch)
        numbers = accelerator.gather(torch.tensor([n for _, got, _ in trace for n in got]))
        assert set(numbers.tolist()) == set(range(COUNT))
        seen.append(trace)
    assert not {pixels for _, _, pixels in seen[0]} & {pixels for _, _, pixels in seen[1]}


def main() -> None:
    folder, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    accelerator = make_accelerator()
    if accelerator.is_main_process:
        make_data(Path(folder))
    accelerator.wait_for_everyone()
    path = Path(folder) / "data.fl"
    for kind in kinds:
        check_resuming(train, kind, path)
        check_accumulation(kind, path)
        check_metrics(kind, path)
    check_uneven(path)
    check_their_own(path)
    accelerator.end_training()
    print("all is well")


if __name__ == "__main__":
    main()
