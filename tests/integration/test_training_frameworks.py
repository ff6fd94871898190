"""Training frameworks: stopped in mid-epoch and resumed, in one process and in two."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import FRAMEWORKS
from tests.integration.launch import launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="starts processes that talk by gloo"),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_training_goes_on_where_it_was(tmp_path: Path, framework: str, world: int) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    worker = Path(__file__).with_name(f"{framework}_worker.py")
    status, said = launch(world, worker, tmp_path, "native", "plain")
    assert status == 0, said[-6000:]
    assert said.count("all is well") == world
