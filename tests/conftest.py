"""Fixtures for all tests: which engine runs, and small datasets."""

from __future__ import annotations

import faulthandler
import io
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

from fastload import _backend, _config

# Tests of what does not depend on the engine: one run of them is enough (see the marker backend_free).
BACKEND_FREE = (
    "parity",
    "integration/test_resume",
    "integration/test_training_frameworks",
    "unit/bench",
    "unit/cli",
    "unit/convert",
    "unit/sampling",
    "unit/staging",
    "unit/storage",
    "unit/test_errors",
    "unit/test_packaging",
    "unit/test_schema",
)


# A shell starts background jobs with SIGINT ignored, which children inherit: no test of Ctrl-C would pass.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _backends() -> list[str]:
    """Return the engines to test: the one that FASTLOAD_BACKEND names, else all that there are."""
    choice = _config.backend_choice()
    if choice != "auto":
        return [choice]
    return ["python"] if _backend.core() is None else ["native", "python"]


def pytest_configure(config: pytest.Config) -> None:
    if not faulthandler.is_enabled():
        faulthandler.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", _backends(), indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if not item.path.is_relative_to(here):
            item.add_marker(pytest.mark.backend_free)  # a doctest
            continue
        relative = item.path.relative_to(here).as_posix()
        if relative.startswith(BACKEND_FREE):
            item.add_marker(pytest.mark.backend_free)


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once on each engine; returns ``"native"`` or ``"python"``."""
    name: str = request.param
    monkeypatch.setenv("FASTLOAD_BACKEND", name)
    return name


@pytest.fixture
def no_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pretend that the compiled core was not built."""
    monkeypatch.setattr(_backend, "_load", lambda: None)
    _backend._warn_once.cache_clear()
    yield
    _backend._warn_once.cache_clear()


def _encode(pixels: np.ndarray, kind: str) -> bytes:
    buffer = io.BytesIO()
    PillowImage.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def picture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two classes of twelve smooth JPEGs each, as ImageFolder wants it.

    It is made once a session: do not change it.
    """
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (root / label).mkdir()
        for i in range(12):
            height, width = (int(n) for n in random.integers(40, 90, 2))
            coarse = random.integers(0, 256, (4, 5, 3), dtype=np.uint8)
            smooth = PillowImage.fromarray(coarse).resize((width, height), PillowImage.Resampling.BICUBIC)
            (root / label / f"{i:02d}.jpg").write_bytes(_encode(np.asarray(smooth), "JPEG"))
    return root


@pytest.fixture
def record_dataset(tmp_path: Path) -> str:
    """Write 100 records (tensor, label, ragged) in several shards; return the dataset's path."""
    import fastload

    path = str(tmp_path / "records.fl")
    schema = {
        "x": fastload.Tensor("uint8", (3, 4)),
        "y": fastload.Label(["a", "b", "c"]),
        "t": fastload.Ragged("uint16"),
    }
    with fastload.Writer(path, schema=schema, shard_size=1 << 10) as writer:
        for i in range(100):
            x = np.full((3, 4), i, np.uint8)
            writer.append({"x": x, "y": i % 3, "t": np.arange(i % 7, dtype=np.uint16)})
    return path
