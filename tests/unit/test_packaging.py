"""What the package promises as a package: where the environment is read, the stub, the metadata."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fastload
from fastload import _backend

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fastload"
MODULES = sorted(PACKAGE.rglob("*.py"))
CORE = _backend.core()


def _names_used(path: Path) -> set[str]:
    """Return what a module imports and which attributes it takes, as dotted text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
    return found


def test_only_config_reads_the_environment() -> None:
    readers = {"os.environ", "os.getenv", "os.environb"}
    found = {path.relative_to(PACKAGE).as_posix() for path in MODULES if _names_used(path) & readers}
    assert found == {"_config.py"}


def test_only_the_backend_module_imports_the_core() -> None:
    core = {"fastload._core", "_core"}
    found = {path.relative_to(PACKAGE).as_posix() for path in MODULES if _names_used(path) & core}
    assert found == {"_backend.py"}


def test_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_version_is_the_packages() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{fastload.__version__}"\n' in text


def test_every_public_name_is_there() -> None:
    for name in fastload.__all__:
        assert getattr(fastload, name) is not None


@pytest.mark.skipif(CORE is None, reason="no compiled core")
def test_stub_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "fastload._core", "-o", str(made)]
    subprocess.run(command, check=True, cwd=ROOT)
    assert (PACKAGE / "_core.pyi").read_text() == made.read_text(), "run make stub"


def test_without_a_core_the_python_engine_runs_and_says_so_once(
    no_core: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("FASTLOAD_BACKEND", raising=False)
    assert _backend.name() == "python"
    assert _backend.name() == "python"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "reinstall" in caplog.text
    monkeypatch.setenv("FASTLOAD_BACKEND", "native")
    with pytest.raises(fastload.errors.BackendError, match="not built"):
        _backend.name()


def test_an_unknown_backend_is_an_error_that_lists_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOAD_BACKEND", "fast")
    with pytest.raises(fastload.errors.UsageError, match="auto, native, python"):
        _backend.name()
