"""What the measuring process and the measured process say to each other, and the loop that is measured.

A job prints ``BASELINE`` once torch and NumPy are imported and nothing else is (memory is counted above
that), and ``RESULT`` with JSON at its end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

BASELINE = "BASELINE"
RESULT = "RESULT "


def announce_baseline() -> None:
    """Import torch and NumPy, and say that this was done."""
    import numpy  # noqa: F401, ICN001
    import torch  # noqa: F401

    print(BASELINE, flush=True)


def finish(result: dict[str, Any]) -> NoReturn:
    """Print the result and leave at once: how peers tear down is not what is measured."""
    print(RESULT + json.dumps(result), flush=True)
    sys.stderr.flush()
    os._exit(0)


def samples_of(batch: Any) -> Any:
    """Return the first field of a batch in any of the shapes that loaders give it."""
    if isinstance(batch, list) and isinstance(batch[0], dict):  # DALI: one dict for each pipeline
        batch = batch[0]
    if isinstance(batch, dict):
        return next(iter(batch.values()))
    if isinstance(batch, (list, tuple)):
        return batch[0]
    return batch


def measure(make: Callable[[], Iterable[Any]], epochs: int, seconds: float) -> dict[str, Any]:
    """Iterate over a loader: one epoch to warm up, then at least ``epochs``, and at least ``seconds`` in all.

    Returns a dict of ``epochs`` (samples, seconds, and seconds until the first batch, of each, the warm-up
    first), and the shape and dtype of the last batch.
    """
    loader = make()
    measured: list[dict[str, float]] = []
    last: Any = None
    spent = 0.0
    while len(measured) < epochs + 1 or spent < seconds:
        begin = time.perf_counter()
        first = None
        samples = 0
        for batch in loader:
            if first is None:
                first = time.perf_counter() - begin
            last = samples_of(batch)
            samples += len(last)
        elapsed = time.perf_counter() - begin
        if measured:
            spent += elapsed
        measured.append({"samples": samples, "seconds": elapsed, "first_batch_seconds": first or elapsed})
        if samples == 0:
            raise SystemExit("the loader gave nothing")
    return {"epochs": measured, "shape": list(last.shape), "dtype": str(last.dtype)}
