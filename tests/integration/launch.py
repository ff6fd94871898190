"""Scripts run in one process or several, as torchrun runs them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def launch(world: int, script: Path, *arguments: object, engine: str | None = None) -> tuple[int, str]:
    """Run a script by torchrun; returns its exit status and what it said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if engine is not None:
        environment["FASTLOAD_BACKEND"] = engine
    command = [sys.executable]
    if world == 1:  # as torchrun would
        environment |= {**address, "RANK": "0", "WORLD_SIZE": "1"}
    else:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(world)]
        command += ["--master-addr", address["MASTER_ADDR"], "--master-port", port]
    command += [str(script), *map(str, arguments)]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr
