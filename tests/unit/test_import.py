from __future__ import annotations

import subprocess
import sys

import pytest

import fastload


def loaded(code: str) -> set[str]:
    """Return the modules that ``code`` loads in a new interpreter, beyond those of an empty one."""
    script = f"import sys; before = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(out.stdout.split())


def test_importing_costs_next_to_nothing() -> None:
    modules = loaded("import fastload")
    assert not {"torch", "numpy", "pyarrow", "PIL", "fsspec", "zstandard"} & modules
    # Modules of the standard library that are slow to load do not come in by the back door either.
    assert not {"asyncio", "multiprocessing", "typing_extensions", "inspect", "json", "ssl"} & modules
    assert {name for name in modules if name.startswith("fastload")} == {"fastload"}
    assert len(modules) < 60


def test_field_types_need_no_numpy() -> None:
    modules = loaded("import fastload; fastload.Schema({'x': fastload.Scalar('int8')})")
    assert not {"torch", "numpy", "pyarrow"} & modules


def test_opening_needs_neither_torch_nor_pyarrow() -> None:
    modules = loaded("import fastload; fastload.open, fastload.Writer, fastload.Dataset")
    assert not {"torch", "pyarrow", "PIL", "fsspec"} & modules


def test_every_public_name_is_there() -> None:
    for name in fastload.__all__:
        assert getattr(fastload, name) is not None
        assert name in dir(fastload)
    assert fastload.__version__.count(".") == 2


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'fastload' has no attribute 'Loader'"):
        fastload.Loader  # noqa: B018
