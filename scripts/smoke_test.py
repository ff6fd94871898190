"""Check that an installed fastload works: write a dataset of pictures, open it, load it, each value compared.

Usage: python scripts/smoke_test.py [native|python]; the argument says which engine it must be.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

RECORDS = 12


def picture(number: int) -> bytes:
    """Return a JPEG of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (20 * number, 100, 200)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def main() -> None:
    import fastload
    from fastload import _backend
    from fastload import transforms as T

    engine = _backend.name()
    if len(sys.argv) > 1 and engine != sys.argv[1]:
        raise SystemExit(f"the engine is {engine}, not {sys.argv[1]}")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "smoke.fl")
        schema = {
            "image": fastload.Image(),
            "label": fastload.Label(["even", "odd"]),
            "x": fastload.Tensor("float32", (5,)),
        }
        with fastload.Writer(path, schema=schema) as writer:
            for i in range(RECORDS):
                writer.append({"image": picture(i), "label": i % 2, "x": np.full(5, i, np.float32)})
        dataset = fastload.open(path).transform(image=[T.CenterCrop(16)])
        loader = fastload.DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2, seed=0)
        seen = []
        for batch in loader:
            assert batch["image"].shape == (4, 3, 16, 16), batch["image"].shape
            for image, label, x in zip(batch["image"], batch["label"], batch["x"], strict=True):
                number = int(x[0])
                assert int(label) == number % 2
                assert abs(int(image[0, 8, 8]) - 20 * number) < 6
                seen.append(number)
        assert sorted(seen) == list(range(RECORDS)), seen
        assert seen != list(range(RECORDS)), "not shuffled"
        loader.close()
    print(f"fastload {fastload.__version__} works here, on its {engine} engine")


if __name__ == "__main__":
    main()
