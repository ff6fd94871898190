"""Scripts run in one process or several, as torchrun runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def launch(world: int, script: Path, *arguments: object, engine: str | None = None) -> tuple[int, str]:
    """Run a script by torchrun; returns its exit status and what it said."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if engine is not None:
        environment["FASTLOAD_BACKEND"] = engine
    # Alone, torchrun chooses a free port and holds it from the choice on.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    command += [str(script), *map(str, arguments)]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr
