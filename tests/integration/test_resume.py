"""A distributed training run that is killed goes on at another world size, as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from examples import resume
from fastload import _backend, _config
from tests.integration.launch import launch

WORKER = Path(__file__).with_name("resume_worker.py")
EPOCHS, COUNT, GLOBAL_BATCH, SAVE_EVERY = 3, 64, 10, 3
STEPS = -(-COUNT // GLOBAL_BATCH)  # of an epoch
NEVER = -1

Place = tuple[int, int]  # epoch, position
Sample = tuple[int, int, str]  # samples of its global batch, record, hash of its pixels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="starts processes that talk by gloo")


class Run:
    """A training run in a folder of its own, with its data, checkpoint and logs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        resume.make_dataset(folder / "data.fl", COUNT)

    def train(
        self,
        log: str,
        world: int,
        engine: str,
        *,
        copies: int = 1,
        kill_step: int = NEVER,
        kill_rank: int = 0,
    ) -> None:
        arguments = [self.folder, self.folder / log, EPOCHS, copies, kill_step, kill_rank]
        status, said = launch(world, WORKER, *arguments, engine=engine)
        assert (status != 0) == (kill_step != NEVER), said[-6000:]

    def samples(self, log: str) -> dict[Place, Sample]:
        found: dict[Place, Sample] = {}
        for file in self.folder.glob(f"{log}.*"):
            for line in file.read_text().splitlines():
                epoch, position, *rest = json.loads(line)
                assert (epoch, position) not in found, "a sample twice in one run"
                found[epoch, position] = (rest[0], rest[1], rest[2])
        return found

    def saved(self) -> Place:
        state = torch.load(self.folder / "checkpoint.pt")["loader"]
        return state["epoch"], state["position"]

    def weights(self, log: str) -> list[float]:
        found: list[float] = json.loads((self.folder / f"{log}-weights.json").read_text())
        return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_run_goes_on_at_another_world_size(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    kills = [chance.randrange(SAVE_EVERY, 2 * STEPS - SAVE_EVERY), chance.randrange(SAVE_EVERY, STEPS - 1)]
    print(f"seed {seed}: killed after {kills[0]} steps, and again after {kills[1]}")
    engines = [_config.backend_choice()] * 3 if _backend.core() is None else ["native", "python", "native"]
    whole, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    whole.train("log", 1, engines[0])
    expected = whole.samples("log")
    places = [(epoch, position) for epoch in range(EPOCHS) for position in range(COUNT)]
    assert sorted(expected) == places
    for epoch in range(EPOCHS):
        assert sorted(expected[epoch, position][1] for position in range(COUNT)) == list(range(COUNT))

    begins = (0, 0)
    for log, world, copies, kill in [("a", 2, 1, kills[0]), ("b", 4, 1, kills[1]), ("c", 2, 2, NEVER)]:
        victim = chance.randrange(world)
        killed.train(log, world, engines.pop(0), copies=copies, kill_step=kill, kill_rank=victim)
        got = killed.samples(log)
        assert min(got) == begins
        assert {place: sample for place, sample in got.items() if expected[place] != sample} == {}
        # The rank that is killed has written its last batch, which the others may not have reached.
        steps = kill if kill != NEVER else EPOCHS * STEPS
        first = begins[0] * STEPS + begins[1] // GLOBAL_BATCH
        done = [(e, p) for e, p in places if first <= e * STEPS + p // GLOBAL_BATCH < first + steps]
        assert set(done) <= set(got)
        epoch, position = killed.saved()
        begins = (epoch + 1, 0) if position == COUNT else (epoch, position)
    assert killed.samples("c-copy") == got
    assert np.allclose(killed.weights("c"), whole.weights("log"), atol=1e-5)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Be a world of one process, and keep the signal handlers that the example sets to itself."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_the_example_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resume.make_dataset(tmp_path / "data.fl")
    for epochs in (1, 2):
        resume.train(tmp_path, epochs, save_every=5)
        assert capsys.readouterr().out.startswith(f"epoch {epochs - 1}: loss ")
    resume.train(tmp_path, 2, save_every=5)
    assert capsys.readouterr().out == ""
