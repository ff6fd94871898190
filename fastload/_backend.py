"""The choice between the compiled core and the Python engine; the only importer of ``fastload._core``."""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType

from fastload import _config
from fastload.errors import BackendError


@functools.cache
def _load() -> ModuleType | None:
    if importlib.util.find_spec("fastload._core") is None:
        return None
    try:
        from fastload import _core
    except ImportError as error:
        raise BackendError(
            f"fastload's compiled core is installed but does not load: {error}",
            hint="reinstall fastload, or set FASTLOAD_BACKEND=python to do without it",
        ) from error
    return _core


@functools.cache
def _warn_once() -> None:
    _config.logger.warning(
        "fastload runs on its Python engine: the compiled core was not built. Everything works, slowly; "
        "install a C++20 compiler and libjpeg-turbo, and reinstall, to get it."
    )


def core() -> ModuleType | None:
    """Return the compiled core, or None where the Python engine is to be used.

    Raises BackendError where the core is asked for (``FASTLOAD_BACKEND=native``) and not built, and
    wherever it is built and does not load: a broken core must not pass for a slow machine.
    """
    choice = _config.backend_choice()
    if choice == "python":
        return None
    module = _load()
    if module is None:
        if choice == "native":
            raise BackendError(
                "FASTLOAD_BACKEND=native, but the compiled core was not built",
                hint="install a C++20 compiler, libjpeg-turbo and zstd headers, and reinstall fastload",
            )
        _warn_once()
    return module


def name() -> str:
    """Return ``"native"`` or ``"python"``: which one :func:`core` chooses now."""
    return "python" if core() is None else "native"
