"""The torch-compatible face: a DataLoader that runs fastload datasets natively."""

from __future__ import annotations

from fastload.loader.dataloader import DataLoader

__all__ = ["DataLoader"]
