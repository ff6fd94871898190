"""Conversion from other kinds of data, and export back to files."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastload.convert.exporter import Exported as Exported
    from fastload.convert.exporter import export as export
    from fastload.convert.runner import Converted as Converted
    from fastload.convert.runner import convert as convert
    from fastload.convert.runner import from_torch as from_torch

__all__ = ["Converted", "Exported", "convert", "export", "from_torch"]

_HOMES = {
    "Exported": "exporter",
    "export": "exporter",
    "Converted": "runner",
    "convert": "runner",
    "from_torch": "runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fastload.convert' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fastload.convert.{_HOMES[name]}"), name)
