"""Check an accelerator where one is at hand: is what device= promises true, and how fast is it?

    python -m benchmarks.gpu_check                          # minutes; "no accelerator here" without one
    python -m benchmarks.gpu_check --device cpu --small     # the same lines of code, with nothing to measure

Prints a table, writes JSON with ``--out``, and ends with status 1 where a check fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as PillowImage
from torch.utils import data

import fastload
from benchmarks.host import describe
from benchmarks.resnet import resnet50
from fastload import transforms as T
from fastload.errors import UsageError
from fastload.staging import Copier, find_device, pin_available

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is done."""

    images: int = 1024
    side: int = 224
    batch: int = 256
    workers: int = 0
    steps: int = 30
    drops: int = 1000
    drop_bytes: int = 1 << 20
    copy_bytes: int = 64 << 20
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64


SMALL = Sizes(24, 32, 4, 0, 3, 20, 1 << 12, 1 << 16, (1, 1), 4)


class Machine:
    """The device, and what is asked of torch about it."""

    def __init__(self, device: torch.device) -> None:
        module: Any = getattr(torch, device.type)
        index = device.index
        if index is None and device.type != "cpu":
            index = module.current_device()
        self.device = torch.device(device.type, index) if device.type != "cpu" else device
        self._module = module

    def wait(self) -> None:
        """Let the host wait until the device has done everything."""
        self._module.synchronize()

    def seconds(self, work: Callable[[], Any]) -> float:
        """Return how long ``work`` takes to the end of what it queued."""
        self.wait()
        started = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - started

    @property
    def name(self) -> str:
        """What the device is called."""
        named = getattr(self._module, "get_device_name", None)
        return str(named(self.device)) if named is not None else str(self.device)


# --- is it right? ----------------------------------------------------------------------------------------


def check_pinned(machine: Machine, images: fastload.Dataset, sizes: Sizes) -> dict[str, Any]:
    """Are batches pinned on every way that makes them?"""
    if not pin_available():
        return {"ok": None, "why": "no memory can be pinned here"}
    ready = images.transform(image=[T.CenterCrop(sizes.side)])
    batches = {
        "native": fastload.DataLoader(ready, sizes.batch, num_workers=2, pin_memory=True),
        "map": fastload.DataLoader(ready.map(dict), sizes.batch, num_workers=2, pin_memory=True),
        "caller": fastload.DataLoader(Numbers(), sizes.batch, pin_memory=True),
        "processes": fastload.DataLoader(Numbers(), sizes.batch, num_workers=2, pin_memory=True),
    }
    pinned = {}
    for way, loader in batches.items():
        batch = next(iter(loader))
        tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
        pinned[way] = all(tensor.is_pinned() for tensor in tensors)
        loader.close()
    return {"ok": all(pinned.values()), **pinned}


def check_dropped_sources(machine: Machine, sizes: Sizes) -> dict[str, Any]:
    """Are batches byte-equal whose sources are dropped at once, behind a stream that is busy?

    Once with the copier, which holds sources, and once as with ``pin_memory=True`` and ``.to()``, where
    torch's allocator alone knows of the copies.
    """
    copier = Copier(machine.device)
    side = 1024 if sizes.drops > 100 else 16
    matrix = torch.rand(side, side, device=machine.device)
    different = torch.zeros(2, dtype=torch.int64, device=machine.device)

    def busy(batch: Any = None) -> Any:
        for _ in range(10):
            torch.mm(matrix, matrix)
        return batch

    def source(value: int) -> torch.Tensor:
        return torch.full((sizes.drop_bytes,), value, dtype=torch.uint8, pin_memory=pin_available())

    for number in range(sizes.drops):
        value = number % 251
        copy = copier.submit(source(value), busy)  # the next copy waits behind it
        source(255)  # what takes the source's memory, if that is free too early, writes to it
        different[0] += (copier.take(copy) != value).any()
        busy()
        arrived = source(value).to(machine.device, non_blocking=True)
        source(255)
        different[1] += (arrived != value).any()
    copier.close()
    wrong = different.tolist()
    return {"ok": not any(wrong), "batches": sizes.drops, "wrong, copier": wrong[0], "wrong, .to()": wrong[1]}


def check_same_bits(machine: Machine, images: fastload.Dataset, sizes: Sizes) -> dict[str, Any]:
    """Has a batch the same bits wherever it is normalised?"""
    told: dict[str, bool] = {}
    for dtype in ("float32", "float16", "bfloat16"):
        pair = [
            fastload.DataLoader(
                _ready(images, sizes, dtype),
                sizes.batch,
                num_workers=2,
                device=machine.device,
                normalize_on=place,
            )
            for place in ("host", "device")
        ]
        told[dtype] = all(torch.equal(a["image"], b["image"]) for a, b in zip(*pair, strict=True))
    return {"ok": all(told.values()), **told}


class Numbers(data.Dataset[Any]):
    """Samples that say whether their process began to use the accelerator."""

    def __init__(self, kind: str = "cuda") -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, Any]:
        begun = getattr(getattr(torch, self.kind), "is_initialized", lambda: False)()
        return {"x": torch.full((64,), float(index)), "begun": begun and self.kind != "cpu"}


_LAST_ONLY = """
import fastload, torch
from benchmarks.gpu_check import Numbers
for dataset in (fastload.open({path!r}), Numbers()):
    for batch in fastload.DataLoader(dataset, 8, num_workers=2, device="cuda:{last}"):
        pass
print([index for index in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(index)])
"""


def check_contexts(machine: Machine, path: str) -> dict[str, Any]:
    """Is no device touched but the one asked for, and none by worker processes?"""
    loader = fastload.DataLoader(Numbers(machine.device.type), 32, num_workers=2, device=machine.device)
    begun = any(bool(batch["begun"].any()) for batch in loader)
    told: dict[str, Any] = {"ok": not begun, "workers began to use it": begun}
    last = torch.cuda.device_count() - 1
    if machine.device.type == "cuda" and last > 0:
        program = _LAST_ONLY.format(path=path, last=last)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
        )
        told["contexts"] = done.stdout.strip()
        told["ok"] = told["ok"] and told["contexts"] == f"[{last}]"
    else:
        told["contexts"] = "not seen: it takes two CUDA devices"
    return told


# --- how fast is it? -------------------------------------------------------------------------------------


def measure_overlap(machine: Machine, sizes: Sizes) -> dict[str, Any]:
    """How much of the copies is hidden behind a computation?"""
    side = 4096 if sizes.copy_bytes > 1 << 20 else 32
    matrix = torch.rand(side, side, device=machine.device)
    source = torch.zeros(sizes.copy_bytes, dtype=torch.uint8, pin_memory=pin_available())
    copier = Copier(machine.device)

    def compute(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    def run(times: int, *, copies: bool) -> None:
        """Steps that copy ahead, as iterators do, each waited for by the host: the worst case for copying."""
        copy = copier.submit(source) if copies else None
        for _ in range(sizes.steps):
            if copy is not None:
                copier.take(copy)
                copy = copier.submit(source)
            compute(times)
            if times:
                machine.wait()

    run(1, copies=True)  # warm
    copying = machine.seconds(lambda: run(0, copies=True))
    one = max(machine.seconds(lambda: compute(10)) / 10, 1e-7)
    times = max(1, round(copying / sizes.steps / one))  # as long as a copy
    computing = machine.seconds(lambda: run(times, copies=False))
    both = machine.seconds(lambda: run(times, copies=True))
    copier.close()
    hidden = (copying + computing - both) / min(copying, computing)
    gigabytes = sizes.copy_bytes * (sizes.steps + 1) / copying / 1e9
    overlaps = None if machine.device.type == "cpu" else hidden > 0.5
    return {
        "ok": overlaps,
        "hidden share of the shorter": round(hidden, 3),
        "copies s": round(copying, 4),
        "computation s": round(computing, 4),
        "both s": round(both, 4),
        "copies GB/s": round(gigabytes, 2),
    }


def _ready(images: fastload.Dataset, sizes: Sizes, dtype: str = "float16") -> fastload.Dataset:
    crop = [T.RandomResizedCrop(sizes.side), T.RandomHorizontalFlip()]
    arithmetic = [T.ToDtype(dtype, scale=True), T.Normalize(MEAN, STD), T.Layout("channels_last")]
    return images.transform(image=[*crop, *arithmetic])


def _training(machine: Machine, sizes: Sizes) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    network = resnet50(1000, sizes.blocks, sizes.width)
    network = network.to(machine.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(machine.device.type, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure_training(machine: Machine, images: fastload.Dataset, sizes: Sizes) -> dict[str, Any]:
    """How many samples a second go into a ResNet-50 step, beside a batch that is there already?"""
    ready = _ready(images, sizes).repeat(8)  # decoded anew each time; epochs that are not over at once
    workers = sizes.workers or int(fastload.DataLoader(ready, num_workers="auto").num_workers)
    common: dict[str, Any] = {"shuffle": True, "seed": 0, "num_workers": workers, "drop_last": True}
    common["persistent_workers"] = True
    step = _training(machine, sizes)

    def moved(loader: Iterable[Any]) -> Iterator[Any]:
        for batch in loader:
            yield {name: value.to(machine.device, non_blocking=True) for name, value in batch.items()}

    def device(place: Any) -> Any:
        return fastload.DataLoader(ready, sizes.batch, device=machine.device, normalize_on=place, **common)

    pin = pin_available()
    kept = next(iter(device("host")))
    ways: dict[str, Callable[[], Iterable[Any]]] = {
        "a batch that is there": lambda: (kept for _ in range(sizes.steps)),
        "device, normalised there": lambda: device("device"),
        "device, normalised on the host": lambda: device("host"),
        "pin_memory and .to()": lambda: moved(
            fastload.DataLoader(ready, sizes.batch, pin_memory=pin, **common)
        ),
    }
    told: dict[str, Any] = {"ok": None, "workers": workers}
    for name, make in ways.items():
        told[f"{name}, samples/s"] = round(_rate(machine, make, step, sizes), 1)
        if name != "a batch that is there":
            told[f"{name}, without a step"] = round(_rate(machine, make, None, sizes), 1)
    return told


def _rate(
    machine: Machine, make: Callable[[], Iterable[Any]], step: Callable[..., Any] | None, sizes: Sizes
) -> float:
    """Return samples a second of ``sizes.steps`` steps, behind two that warm up."""

    def batches() -> Iterator[Any]:
        while True:
            yield from make()

    source = batches()

    def run(count: int) -> None:
        for _ in range(count):
            batch = next(source)
            if step is not None:
                step(batch["image"], batch["label"])

    run(2)
    return sizes.batch * sizes.steps / machine.seconds(lambda: run(sizes.steps))


# --- the whole -------------------------------------------------------------------------------------------


def make_images(path: str, count: int) -> None:
    """Write a dataset of ``count`` JPEG images of 500 x 375 with something of a photograph's spectrum."""
    random = np.random.default_rng(0)
    schema = {"image": fastload.Image(), "label": fastload.Label([str(number) for number in range(10)])}
    with fastload.Writer(path, schema=schema) as writer:
        for number in range(count):
            pixels = np.zeros((375, 500, 3), np.float32)
            for side in (4, 16, 64):
                coarse = random.integers(0, 256, (side, side, 3), np.uint8)
                pixels += np.asarray(PillowImage.fromarray(coarse).resize((500, 375)), np.float32) / 3
            file = io.BytesIO()
            PillowImage.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=92)
            writer.append({"image": file.getvalue(), "label": number % 10})


def run_all(machine: Machine, path: str, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Return what each check says: ``ok`` is None where there is nothing to be right or wrong."""
    images = fastload.open(path).select_columns(["image", "label"])
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "batches are pinned": lambda: check_pinned(machine, images, sizes),
        "sources may be dropped": lambda: check_dropped_sources(machine, sizes),
        "the same bits": lambda: check_same_bits(machine, images, sizes),
        "no other device is touched": lambda: check_contexts(machine, path),
        "copies overlap": lambda: measure_overlap(machine, sizes),
        "ResNet-50 training": lambda: measure_training(machine, images, sizes),
    }
    told = {}
    for name, check in checks.items():
        started = time.perf_counter()
        try:
            told[name] = check()
        except Exception as error:  # the others are to be seen as well
            told[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        told[name]["seconds"] = round(time.perf_counter() - started, 1)
        print(table({name: told[name]}), flush=True)
    return told


def table(told: dict[str, dict[str, Any]]) -> str:
    """Return it as text.

    >>> print(table({"bits": {"ok": True, "float32": True}}))
    yes  bits
             float32  True
    """
    lines = []
    for name, values in told.items():
        lines.append(f"{ {True: 'yes', False: 'NO', None: '-'}[values['ok']]:<4} {name}")
        rest = {key: value for key, value in values.items() if key != "ok"}
        width = max(map(len, rest), default=0)
        lines += [f"{'':8} {key:<{width}}  {value}" for key, value in rest.items()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the checks; return the process's status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="which one; the accelerator's current one by default")
    parser.add_argument(
        "--data", help="a fastload dataset with fields image and label; made where none is given"
    )
    parser.add_argument("--small", action="store_true", help="little of everything: to see that it runs")
    parser.add_argument("--batch", type=int, help="samples in a batch")
    parser.add_argument("--workers", type=int, default=0, help="native threads; as many as CPUs by default")
    parser.add_argument("--out", type=Path, help="where to write the results, as JSON")
    given = parser.parse_args(arguments)
    name = given.device
    if name is None:
        known: Any = getattr(torch, "accelerator", None)
        there = torch.cuda.is_available() if known is None else known.is_available()
        if not there:
            print("no accelerator here")
            return 0
        name = "cuda" if known is None else known.current_accelerator().type
    try:
        machine = Machine(find_device(name))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    sizes = SMALL if given.small else Sizes()
    sizes = dataclasses.replace(sizes, workers=given.workers, batch=given.batch or sizes.batch)
    with tempfile.TemporaryDirectory() as folder:
        path = given.data
        if path is None:
            path = f"{folder}/images.fl"
            make_images(path, sizes.images)
        print(f"{machine.name}, torch {torch.__version__}")
        told = run_all(machine, path, sizes)
    if given.out is not None:
        result = {
            "device": machine.name,
            "host": describe(),
            "sizes": dataclasses.asdict(sizes),
            "checks": told,
        }
        given.out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if any(check["ok"] is False for check in told.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
