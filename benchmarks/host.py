"""The machine and the software that figures were measured with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

PACKAGES = (
    "array-record",
    "datasets",
    "ffcv",
    "grain",
    "litdata",
    "mosaicml-streaming",
    "numpy",
    "nvidia-dali-cuda130",
    "pillow",
    "spdl",
    "torch",
    "torchvision",
    "turboloader",
    "webdataset",
)


def _field(path: str, key: str) -> str | None:
    """Return the value of the first ``key : value`` line of a /proc file, None without one."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def revision() -> str | None:
    """Return the commit checked out, with ``+`` where files differ from it; None outside a checkout."""
    folder = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
        )
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=folder,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")


def describe() -> dict[str, Any]:
    """Return the machine: CPU, usable cores, memory in bytes, kernel."""
    memory = _field("/proc/meminfo", "MemTotal")
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": cores(),
        "memory_bytes": int(memory.split()[0]) * 1024 if memory else None,
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def versions() -> dict[str, str]:
    """Return the versions of this interpreter and of the packages in it that figures depend on."""
    found = {"python": sys.version.split()[0]}
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        found["gil"] = "on" if getattr(sys, "_is_gil_enabled")() else "off"  # noqa: B009 - where Python has it
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
