"""Mapped memory of an anonymous file that processes share. Linux only."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from fastload.errors import EngineError

__all__ = ["Bytes", "Mapping", "available", "give_back", "make_file", "reserve", "taken"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE
_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)
_DO_NOT_FORK = 10
_DO_FORK = 11
_MAY_MOVE_FIXED = 3
_NOT_EXECUTABLE = 8
_PUNCH_HOLE = 3
_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def available() -> bool:
    """Return whether processes can share such memory here."""
    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32 or not hasattr(os, "memfd_create"):
        return False
    library = _library()
    return all(hasattr(library, name) for name in ("mmap", "munmap", "mremap", "madvise", "fallocate"))


@functools.cache
def _library() -> Any:
    # Not the mmap module: that keeps a descriptor for each mapping, and cannot put one where another was.
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_int64]
    library.mmap.restype = pointer
    library.munmap.argtypes = [pointer, size]
    library.mremap.argtypes = [pointer, size, size, number, pointer]
    library.mremap.restype = pointer
    library.madvise.argtypes = [pointer, size, number]
    library.fallocate.argtypes = [number, number, ctypes.c_int64, ctypes.c_int64]
    return library


def make_file(size: int) -> int:
    """Return the descriptor of a new file of ``size`` bytes, which takes memory where it is written only."""
    try:
        file = os.memfd_create("fastload", os.MFD_CLOEXEC | _NOT_EXECUTABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        file = os.memfd_create("fastload")  # a kernel before 6.3
    try:
        os.ftruncate(file, size)
    except BaseException:
        os.close(file)
        raise
    return file


def reserve(file: int, begin: int, size: int) -> None:
    """Take the memory of a part of ``file``, so that no write into it can fail.

    Raises EngineError that says how much was needed and how much is free.
    """
    try:
        os.posix_fallocate(file, begin, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise _short(size, error) from error


def give_back(file: int, begin: int, end: int) -> None:
    """Free the memory of a part of ``file``, which reads as zeros then."""
    _library().fallocate(file, _PUNCH_HOLE, begin, end - begin)


def taken(file: int) -> int:
    """Return how many bytes of memory ``file`` takes."""
    return os.fstat(file).st_blocks * 512


def _short(size: int, error: OSError) -> EngineError:
    free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    return EngineError(
        f"a worker's batch needs {size:,} bytes of shared memory, and the system refuses them "
        f"({error.strerror}); {free:,} bytes of memory are free",
        hint="use fewer workers, a smaller prefetch_factor or smaller batches, or raise ulimit -v",
    )


class Mapping:
    """``size`` bytes of a file from ``begin`` on, mapped for as long as any array over them lives.

    With ``populate`` all pages are mapped at once, which is faster than one by one as they are written.

    Raises EngineError where the system refuses it.
    """

    __slots__ = ("__weakref__", "_process", "_unmap", "address", "size")

    def __init__(self, file: int, begin: int, size: int, *, populate: bool = False) -> None:
        self.size = size
        self._process = os.getpid()
        self._unmap = _library().munmap  # kept here: at the interpreter's end modules go before arrays
        self.address = 0
        self.address = _mapped(size, mmap.MAP_SHARED | (_POPULATE if populate else 0), file, begin)
        # A forked child is to hold no part of the file. Arrays that it may see are moved out before.
        _library().madvise(self.address, size, _DO_NOT_FORK)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"data": (self.address, False), "shape": (self.size,), "typestr": "|u1", "version": 3}

    def array(self) -> Bytes:
        """Return it as an array, which keeps it."""
        return np.asarray(self)

    def move_out(self, used: int) -> None:
        """Put ordinary memory with the same first ``used`` bytes in its place, under the same address."""
        library = _library()
        try:
            fresh = _mapped(self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        except EngineError:
            library.madvise(self.address, self.size, _DO_FORK)
            raise
        ctypes.memmove(fresh, self.address, used)
        # In one step, so that another thread that reads always finds the bytes.
        library.mremap(fresh, self.size, self.size, _MAY_MOVE_FIXED, self.address)

    def __del__(self, process: Callable[[], int] = os.getpid) -> None:
        if self.address and process() == self._process:  # in a forked child something else may be there
            self._unmap(self.address, self.size)


def _mapped(size: int, flags: int, file: int, begin: int) -> int:
    address: int | None = _library().mmap(None, size, _PROTECTION, flags, file, begin)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        error = OSError(number, os.strerror(number))
        raise _short(size, error) from error
    return address
