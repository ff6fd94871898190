"""MixUp and CutMix against torchvision's arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastload import transforms as T
from fastload.errors import UsageError
from fastload.transforms.mix import beta_variate

torch = pytest.importorskip("torch")


def _batch(dtype: Any = torch.float32) -> dict[str, Any]:
    values = torch.randint(0, 256, (4, 3, 10, 12), generator=torch.Generator().manual_seed(0))
    return {"image": values.to(dtype), "label": torch.tensor([2, 0, 1, 2]), "name": list("abcd")}


def _mix(operation: Any, batch: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    made: dict[str, Any] = operation(batch, generator=np.random.default_rng(seed))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_mixup(dtype: Any) -> None:
    lam = beta_variate(0.8, np.random.default_rng(0))
    plain = _batch(dtype)
    images, labels = plain["image"].clone(), torch.nn.functional.one_hot(plain["label"], 3).float()
    mixed = _mix(T.MixUp(0.8, 3), plain)
    assert mixed["image"] is plain["image"]  # in place
    assert mixed["image"].dtype == dtype
    expected = images.double() * lam + images.roll(1, 0).double() * (1 - lam)
    assert (mixed["image"].double() - expected).abs().max() <= {torch.float32: 1e-4}.get(dtype, 0.5)
    assert mixed["label"].dtype == torch.float32
    assert torch.allclose(mixed["label"], labels * lam + labels.roll(1, 0) * (1 - lam))
    assert mixed["name"] == list("abcd")
    # Labels that are mixed already are mixed on.
    again = _mix(T.CutMix(), mixed)
    assert again["label"].shape == (4, 3)
    assert torch.allclose(again["label"].sum(1), torch.ones(4))


@pytest.mark.parametrize("seed", range(8))
def test_cutmix(seed: int) -> None:
    plain = _batch(torch.uint8)
    images = plain["image"].clone()
    mixed = _mix(T.CutMix(1.0, 3), plain, seed)
    before = images.roll(1, 0)
    pasted = (mixed["image"] != images).any(0).any(0)
    rows, columns = pasted.any(1).nonzero().flatten().tolist(), pasted.any(0).nonzero().flatten().tolist()
    area = len(rows) * len(columns)
    if area:
        assert rows == list(range(rows[0], rows[-1] + 1))
        part = (..., slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
        assert torch.equal(mixed["image"][part], before[part])
    one_hot = torch.nn.functional.one_hot(plain["label"], 3).float()
    lam = 1 - area / 120
    assert torch.allclose(mixed["label"], one_hot * lam + one_hot.roll(1, 0) * (1 - lam), atol=1e-6)


@pytest.mark.parametrize("alpha", [0.01, 0.2, 1.0, 7.0])
def test_beta(alpha: float) -> None:
    generator = np.random.default_rng(3)
    drawn = np.array([beta_variate(alpha, generator) for _ in range(4000)])
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert abs(drawn.mean() - 0.5) < 0.03
    assert abs(drawn.var() - 1 / (4 * (2 * alpha + 1))) < 0.01


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="alpha"):
        T.MixUp(0.0)
    with pytest.raises(UsageError, match="num_classes is 0"):
        T.CutMix(num_classes=0)
    with pytest.raises(UsageError, match="needs num_classes"):
        _mix(T.MixUp(), _batch())
    with pytest.raises(UsageError, match="a label 2"):
        _mix(T.MixUp(num_classes=2), _batch())
    with pytest.raises(UsageError, match="no field 'image'"):
        _mix(T.MixUp(num_classes=3), {"x": 1})
    with pytest.raises(UsageError, match="list"):
        _mix(T.CutMix(num_classes=3), {"image": [1], "label": torch.zeros(1)})


def test_empty_batches() -> None:
    batch = {"image": torch.zeros(0, 3, 4, 4), "label": torch.zeros(0, dtype=torch.int64)}
    for operation in (T.MixUp(num_classes=3), T.CutMix(num_classes=3)):
        assert _mix(operation, dict(batch))["label"].shape == (0, 3)
