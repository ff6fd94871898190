"""Plans turned into batches, natively or in Python: the same plan, order and draws on both engines."""

from __future__ import annotations

from fastload._config import logger
from fastload.engine.look import Look
from fastload.engine.native import NativeEngine, why_not_native
from fastload.engine.plan import (
    Allocate,
    BatchIndices,
    BatchValue,
    Engine,
    EngineFactory,
    FieldPlan,
    Jagged,
    OnError,
    Plan,
    Rejection,
    indices_of,
)
from fastload.engine.python import PythonEngine
from fastload.engine.trailing import Trailing, without_trailing
from fastload.errors import UsageError

__all__ = [
    "Allocate",
    "BatchIndices",
    "BatchValue",
    "Engine",
    "EngineFactory",
    "FieldPlan",
    "Jagged",
    "Look",
    "NativeEngine",
    "OnError",
    "Plan",
    "PythonEngine",
    "Rejection",
    "Trailing",
    "indices_of",
    "make_engine",
    "why_not_native",
    "without_trailing",
]


def make_engine(plan: Plan, num_workers: int, byte_budget: int | None = None) -> Engine:
    """Return the native engine where it can run all of ``plan``, else the Python engine.

    The Python engine's ``stats()`` say why under ``reason``. Raises EngineError where threads cannot be had.
    """
    reason = why_not_native(plan)
    if reason is None:
        try:
            return NativeEngine(plan, num_workers, byte_budget)
        except UsageError as error:  # an image program that native code does not know
            reason = str(error)
    logger.debug("the Python engine runs: %s", reason)
    return PythonEngine(plan, num_workers, byte_budget, reason=reason)
