"""Lightning, Trainer and Fabric: stopped in the middle of an epoch and resumed, in one process and in two."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.integration.launch import launch

WORKER = Path(__file__).with_name("lightning_worker.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="starts processes that talk by gloo"),
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed"),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("world", [1, 2])
def test_training_goes_on_where_it_was(tmp_path: Path, world: int) -> None:
    status, said = launch(world, WORKER, tmp_path, "native")
    assert status == 0, said[-6000:]
    assert said.count("all is well") == world
