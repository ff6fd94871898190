"""Why a worker process died, as far as that can be seen from here."""

from __future__ import annotations

import re
import shutil
import signal
import threading
from typing import Any

from fastload._machine import out_of_memory_kills

__all__ = ["cause_of", "note_baseline", "tell", "watch_children"]

_TOLD = "The likely cause: "
_baseline: int | None = None
_watching = False


def note_baseline() -> None:
    """Remember how many kills for memory there were before workers start."""
    global _baseline
    _baseline = out_of_memory_kills()


def cause_of(exit_code: int | None, folder: str = "/dev/shm") -> str:
    """Return what an exit code, the kernel's counters and shared memory tell of a worker's end.

    >>> cause_of(-11)
    'it crashed in native code (SIGSEGV): make the sample with num_workers=0 under faulthandler'
    """
    if exit_code is None:
        return ""
    if exit_code == -signal.SIGSEGV or exit_code == -signal.SIGABRT:
        name = signal.Signals(-exit_code).name
        return f"it crashed in native code ({name}): make the sample with num_workers=0 under faulthandler"
    full = _shared_memory_full(folder)
    if exit_code == -signal.SIGBUS:
        return f"shared memory ran out ({full or folder}): {_LESS_SHARED}"
    if exit_code == -signal.SIGKILL:
        kills = out_of_memory_kills()
        if kills is not None and _baseline is not None and kills > _baseline:
            count = kills - _baseline
            return f"out of memory: the kernel counts {count} such kills since the workers began: {_LESS}"
        if full:
            return f"out of memory, of which shared memory is a part ({full}): {_LESS_SHARED}"
        counted = "cannot be seen here" if kills is None else "did not count one in this control group"
        return f"out of memory, or someone killed it. Kills for memory: the kernel {counted}. If so, {_LESS}"
    if exit_code < 0:
        return f"signal {_name_of(-exit_code)} was sent to it"
    return f"something in it called exit({exit_code}): a library, or the dataset"


_LESS = "use fewer workers, a smaller prefetch_factor or smaller batches"
_LESS_SHARED = f"make /dev/shm larger (docker run --shm-size), or {_LESS}"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _shared_memory_full(folder: str) -> str:
    """Return how full ``folder`` is if hardly anything is left, else nothing."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return ""
    low = usage.free < max(1 << 20, usage.total // 50)
    return f"{folder} has {usage.free >> 20} of {usage.total >> 20} MiB free" if low else ""


def tell(error: RuntimeError, cause: str) -> None:
    """Append the likely cause to an error of torch's about a dead worker, once."""
    text = str(error.args[0]) if error.args else ""
    if cause and text.startswith("DataLoader worker (pid") and _TOLD not in text:
        error.args = (f"{text.rstrip()} {_TOLD}{cause}.", *error.args[1:])


def _cause_in(text: str) -> str:
    """Return the cause that torch's own words about a signal tell.

    >>> _cause_in("DataLoader worker (pid 7) exited unexpectedly with exit code 3.")
    'something in it called exit(3): a library, or the dataset'
    """
    killed = {"Killed": signal.SIGKILL, "Bus error": signal.SIGBUS, "Segmentation fault": signal.SIGSEGV}
    for words, number in killed.items():
        if f"signal: {words}" in text:
            return cause_of(-number)
    code = re.search(r"with exit code (\d+)", text)
    return cause_of(int(code[1])) if code else ""


def watch_children() -> None:
    """Let the error that torch's handler of SIGCHLD raises, wherever the main thread is, say its cause."""
    global _watching
    if _watching or not hasattr(signal, "SIGCHLD"):
        return
    if threading.current_thread() is not threading.main_thread():
        return
    torchs: Any = signal.getsignal(signal.SIGCHLD)
    if not callable(torchs):
        return

    def handler(number: int, frame: Any) -> None:
        try:
            torchs(number, frame)
        except RuntimeError as error:
            tell(error, _cause_in(str(error)))
            raise

    signal.signal(signal.SIGCHLD, handler)
    _watching = True
