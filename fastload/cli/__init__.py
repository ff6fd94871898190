"""The command line. Commands are in one module each; what they need is imported when they run."""

from __future__ import annotations

from fastload.cli.app import main

__all__ = ["main"]
