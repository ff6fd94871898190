"""The script that checks an accelerator: every line of it runs on a CPU as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check


def test_all_of_it_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result.json"
    assert gpu_check.main(["--device", "cpu", "--small", "--out", str(out)]) == 0
    checks = json.loads(out.read_text())["checks"]
    assert len(checks) == 6
    printed = capsys.readouterr().out
    for name in ("sources may be dropped", "the same bits", "no other device is touched"):
        assert checks[name]["ok"] is True
        assert f"yes  {name}" in printed
    assert checks["ResNet-50 training"]["device, normalised there, samples/s"] > 0


def test_without_an_accelerator(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is an accelerator")
    assert gpu_check.main([]) == 0
    assert capsys.readouterr().out == "no accelerator here\n"
    assert gpu_check.main(["--device", "cuda"]) == 2
    assert "not available: there is cpu" in capsys.readouterr().err
