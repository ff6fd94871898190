"""The examples in the docs run."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("backend")

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["mixing.md"])
def test_examples(name: str) -> None:
    result = doctest.testfile(
        str(DOCS / name), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.attempted > 0
    assert result.failed == 0
