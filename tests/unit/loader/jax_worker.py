"""What test_outputs.py asserts of JAX: takes a dataset's path, and on stdin the documented recipe."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import Any

import numpy as np
import torch

import fastload
from fastload.dataset import Dataset
from fastload.loader.outputs import converter

with contextlib.suppress(ImportError):  # doctests are looked for here where there is no jax, too
    import jax

ALL = list(range(53))


def memory_is_shared_and_kept(ds: Dataset) -> None:
    kept = []
    for _ in range(2):
        for batch in fastload.DataLoader(ds, 8, num_workers=2, output="jax"):
            assert isinstance(batch["wide"], jax.Array)
            kept.append((batch["x"], batch["wide"]))
            del batch
            gc.collect()
    for number, (x, wide) in enumerate(kept):
        expected = ALL[number % 7 * 8 : number % 7 * 8 + 8]
        assert x.tolist() == expected, "nothing is overwritten while jax holds it"
        assert wide[:, 0].tolist() == expected
        assert str(x.dtype) == "int32", "jax has no 64-bit integers unless it is told to"
    convert = converter("jax")
    assert convert is not None
    tensor = torch.zeros(1 << 12)
    assert tensor.data_ptr() % 64 or convert(tensor).unsafe_buffer_pointer() == tensor.data_ptr()


def whatever_torch_has_is_taken() -> None:
    given: dict[str, Any] = {
        "bfloat16": torch.ones(3, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "channels_last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "odd": torch.arange(64.0)[1:],
        "empty": torch.empty(0, 3),
        "array": np.arange(3, dtype=np.uint8),
        "learned": torch.ones(2, requires_grad=True),
    }
    convert = converter("jax")
    assert convert is not None
    batch = convert({**given, "text": "t"})
    assert batch.pop("text") == "t"
    for name, array in batch.items():
        expected = given[name]
        values = expected.detach().float() if isinstance(expected, torch.Tensor) else expected
        assert isinstance(array, jax.Array)
        assert np.array_equal(np.asarray(array, dtype=np.float32), np.asarray(values)), name


def batches_are_sharded_over_a_mesh(ds: Dataset, recipe: str) -> None:
    seen: list[int] = []

    def train_step(batch: dict[str, Any]) -> None:
        assert len(batch["wide"].sharding.device_set) == 8
        assert {shard.data.shape for shard in batch["wide"].addressable_shards} == {(2, 4)}
        total = jax.jit(lambda wide: wide.sum(axis=1))(batch["wide"])
        assert np.array_equal(total, 4 * np.asarray(batch["x"]))
        seen.extend(batch["x"].tolist())

    known = {"fastload": fastload, "jax": jax, "ds": ds, "train_step": train_step}
    exec(recipe, known)
    assert len(seen) == len(set(seen)) == 48


if __name__ == "__main__":
    whole = fastload.open(sys.argv[1])
    memory_is_shared_and_kept(whole)
    whatever_torch_has_is_taken()
    batches_are_sharded_over_a_mesh(whole.select_columns(["x", "wide"]), sys.stdin.read())
    print("fine")
