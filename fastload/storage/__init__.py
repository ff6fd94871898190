"""Where bytes live: a local folder, or anything that fsspec knows by the URL's scheme."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from fastload.errors import UsageError
from fastload.storage.local import LocalStorage
from fastload.storage.remote import RemoteStorage

__all__ = ["LocalStorage", "RemoteStorage", "open_storage"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(://|::)")


def open_storage(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> LocalStorage | RemoteStorage:
    """Return the storage at a path or URL; nothing is read or made yet.

    ``options`` go to fsspec. Raises UsageError where the scheme is unknown or its package is missing.

    >>> open_storage("data/photos.fl").local_path is not None
    True
    """
    text = os.fspath(url)
    if not isinstance(text, str) or not text:
        raise UsageError(f"{url!r} is not a path", hint="give the folder or URL of a dataset")
    match = _SCHEME.match(text)
    if match is None or match[1].lower() in ("file", "local"):
        if options:
            raise UsageError("storage_options are given for a local folder", path=text, hint="leave them out")
        return LocalStorage(text[match.end() :] if match else text)
    return RemoteStorage(text, options or {})
