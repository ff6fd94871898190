"""output=: arrays of the type asked for, over the same memory, of fastload and of Python datasets."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload.dataset import Dataset
from fastload.errors import UsageError
from fastload.loader.outputs import converter
from fastload.staging import JaggedTensor

from .ways import Numbers, numbers

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
has_ml_dtypes = importlib.util.find_spec("ml_dtypes") is not None


def convert(output: Any, batch: Any) -> Any:
    made = converter(output)
    return batch if made is None else made(batch)


def batch_of_everything() -> dict[str, Any]:
    return {
        "tensor": torch.arange(6).reshape(2, 3),
        "array": np.arange(4, dtype=np.float32),
        "scalar": np.float64(2.5),
        "jagged": JaggedTensor(torch.arange(3), torch.tensor([0, 3])),
        "list": [torch.zeros(1), None, "text"],
        "words": np.array(["a", "b"]),
        "number": 3,
    }


def test_none_changes_nothing() -> None:
    assert converter(None) is None


def test_torch_takes_arrays_over_the_same_memory() -> None:
    given = batch_of_everything()
    batch = convert("torch", given)
    assert batch["tensor"] is given["tensor"]
    assert batch["array"].data_ptr() == given["array"].ctypes.data
    assert batch["scalar"].dtype == torch.float64
    assert batch["words"] is given["words"]
    assert batch["list"][1:] == [None, "text"]
    assert batch["number"] == 3


def test_torch_takes_arrays_that_share_no_memory_with_it() -> None:
    fixed = np.arange(3)
    fixed.flags.writeable = False
    batch = convert("torch", [fixed, np.arange(3, dtype=">i4"), np.arange(3)[::-1], np.zeros(2, np.uint16)])
    assert [each.tolist() for each in batch] == [[0, 1, 2], [0, 1, 2], [2, 1, 0], [0, 0]]
    batch[0][0] = 9
    assert fixed[0] == 0


def test_numpy_gives_arrays_over_the_same_memory() -> None:
    given = batch_of_everything()
    batch = convert("numpy", given)
    assert batch["tensor"].ctypes.data == given["tensor"].data_ptr()
    assert batch["array"] is given["array"]
    assert isinstance(batch["jagged"], JaggedTensor)
    assert batch["jagged"].offsets.tolist() == [0, 3]
    assert convert("numpy", torch.ones(2, requires_grad=True)).tolist() == [1, 1]


@pytest.mark.skipif(not has_ml_dtypes, reason="ml_dtypes is not installed")
def test_bfloat16_in_numpy_is_ml_dtypes() -> None:
    array = convert("numpy", torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert (array.dtype.name, array.tolist()) == ("bfloat16", [1.5, -2.0])
    assert convert("torch", array).dtype == torch.bfloat16


def test_bfloat16_in_numpy_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UsageError, match="no bfloat16 of its own: pip install ml_dtypes"):
        convert("numpy", torch.ones(1, dtype=torch.bfloat16))


def test_dlpack_is_what_every_library_takes() -> None:
    fixed = np.arange(3)
    fixed.flags.writeable = False
    given = {**batch_of_everything(), "fixed": fixed, "learned": torch.ones(2, requires_grad=True)}
    batch = convert("dlpack", given)
    for name in ("tensor", "array", "scalar", "fixed", "learned"):
        assert np.from_dlpack(batch[name]).shape == np.shape(batch[name])
    assert np.from_dlpack(batch["tensor"]).ctypes.data == given["tensor"].data_ptr()


def test_what_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"unknown output 'tf': use one of torch, numpy, jax, dlpack"):
        fastload.DataLoader(Numbers(), output="tf")  # type: ignore[arg-type]
    if importlib.util.find_spec("jax") is None:
        with pytest.raises(UsageError, match=r"needs jax: pip install 'fastload\[jax\]'"):
            fastload.DataLoader(Numbers(), output="jax")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("output", ["torch", "numpy", "dlpack"])
def test_loaders_of_both_kinds(ds: Dataset, output: Any, device: str | None, workers: int) -> None:
    kind = np.ndarray if output == "numpy" else torch.Tensor
    for dataset in (ds, ds.with_format("numpy"), Numbers()):
        loader = fastload.DataLoader(dataset, 8, num_workers=workers, output=output, device=device)
        for number, batch in enumerate(loader):
            assert isinstance(batch["x"], kind)
            assert batch["x"].tolist() == list(range(53))[number * 8 : number * 8 + 8]
            assert isinstance(batch["wide"], kind)
            assert batch["name"][0] == str(number * 8)
        assert loader.stats()["batches"] == 7


def test_functions_of_the_user_see_what_the_dataset_gives(ds: Dataset) -> None:
    seen = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(type(batch["x"]))
        return batch

    for format, kind in (("numpy", np.ndarray), ("torch", torch.Tensor)):
        seen.clear()
        for output in ("torch", "numpy"):
            loader = fastload.DataLoader(
                ds.with_format(format).map_batches(look),  # type: ignore[arg-type]
                8,
                output=output,  # type: ignore[arg-type]
            )
            assert type(next(iter(loader))["x"]) is (np.ndarray if output == "numpy" else torch.Tensor)
        assert seen == [kind, kind]


def test_single_samples(ds: Dataset) -> None:
    loader = fastload.DataLoader(ds, None, output="numpy")
    assert [sample["wide"].tolist() for sample in loader][5] == [5.0] * 4


def test_bfloat16_keeps_its_type_in_tensors(backend: str, tmp_path: Path) -> None:
    path = str(tmp_path / "b.fl")
    with fastload.Writer(path, schema={"x": fastload.Tensor("bfloat16", (2,))}) as writer:
        writer.append({"x": torch.tensor([1.5, 2.5], dtype=torch.bfloat16)})
    dataset = fastload.open(path).with_format("numpy")
    (batch,) = fastload.DataLoader(dataset, 4, output="torch")
    assert batch["x"].dtype == torch.bfloat16
    if has_ml_dtypes:
        (array,) = fastload.DataLoader(dataset, 4, output="numpy")
        assert array["x"].dtype.name == "bfloat16"


# --- jax ---------------------------------------------------------------------------------------------------


@needs_jax
def test_jax(backend: str, numbers_path: str) -> None:
    """What jax_worker.py says, in a process of its own, on eight CPU devices.

    JAX has threads, and other tests fork this process.
    """
    documented = (Path(__file__).parents[3] / "docs" / "dataloader.md").read_text()
    recipe = documented.split("<!-- a recipe that is tested -->")[1].split("\n\n")[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("jax_worker.py")), numbers_path],
        check=False,
        env=environment,
        input=textwrap.dedent(recipe),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "fine\n", done.stderr


def test_numbers_are_the_same_in_every_output() -> None:
    loaders = [fastload.DataLoader(Numbers(), 8, output=output) for output in (None, "torch", "numpy")]  # type: ignore[arg-type]
    assert numbers(loaders[0]) == numbers(loaders[1]) == numbers(loaders[2])
