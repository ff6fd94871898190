"""The native engine against the Python engine: the same plan makes the same batches, errors included."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage

import fastload
from fastload import _backend
from fastload import transforms as T
from fastload.engine import (
    BatchIndices,
    FieldPlan,
    Jagged,
    NativeEngine,
    Plan,
    PythonEngine,
    indices_of,
    make_engine,
    why_not_native,
)
from fastload.errors import CorruptionError, DecodeError, EngineError, FastloadError, UsageError
from fastload.staging import JaggedTensor, PinnedBatch, to_torch

pytestmark = pytest.mark.skipif(
    _backend.core() is None or not hasattr(_backend.core(), "Engine"),
    reason="the compiled core was not built",
)

COUNT = 120
SCHEMA = {
    "x": fastload.Tensor("uint8", (3, 5)),
    "y": fastload.Label(["a", "b", "c"]),
    "flag": fastload.Scalar("bool"),
    "half": fastload.Tensor("bfloat16", (2,)),
    "maybe": fastload.Scalar("float32", nullable=True),
    "maybe_label": fastload.Label(["a", "b"], nullable=True),
    "tokens": fastload.Ragged("uint16"),
    "boxes": fastload.Ragged("float32", (None, 4), codec="zstd"),
    "wave": fastload.Ragged("int16", (2, None)),
    "mask": fastload.Ragged("bool", (None, None)),
    "maybe_tokens": fastload.Ragged("int64", nullable=True),
    "text": fastload.Str(codec="zstd"),
    "words": fastload.StrList(nullable=True),
    "meta": fastload.Json(),
    "raw": fastload.Bytes(nullable=True),
}


def _record(i: int) -> dict[str, Any]:
    random = np.random.default_rng(i)
    return {
        "x": random.integers(0, 256, (3, 5), dtype=np.uint8),
        "y": i % 3,
        "flag": bool(i % 2),
        "half": random.integers(0, 1 << 14, 2, dtype=np.uint16),
        "maybe": None if i % 4 == 0 else float(i),
        "maybe_label": None if i % 5 == 0 else i % 2,
        "tokens": random.integers(0, 1 << 16, i % 7, dtype=np.uint16),
        "boxes": random.random((i % 3, 4), dtype=np.float32),
        "wave": random.integers(-9, 9, (2, i % 4), dtype=np.int16),
        "mask": random.random((i % 3, i % 5)) < 0.5,
        "maybe_tokens": None if i % 3 == 0 else np.arange(i % 4),
        "text": f"record {i} é",
        "words": None if i % 6 == 0 else [f"w{k}" for k in range(i % 3)],
        "meta": {"i": i, "list": [1, None]},
        "raw": None if i % 2 else bytes(range(i % 9)),
    }


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("rich") / "d.fl")
    with fastload.Writer(path, schema=SCHEMA, shard_size=2 << 10) as writer:
        for i in range(COUNT):
            writer.append(_record(i))
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a dataset of 400 records of 4,096 bytes, each filled with its number modulo 251."""
    path = str(tmp_path_factory.mktemp("wide") / "d.fl")
    with fastload.Writer(path, schema={"x": fastload.Tensor("uint8", (4096,))}) as writer:
        for i in range(400):
            writer.append({"x": np.full(4096, i % 251, np.uint8)})
    return path


def _encoded(i: int, kind: str, size: tuple[int, int]) -> bytes:
    coarse = np.random.default_rng(i).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    PillowImage.fromarray(coarse).resize(size, PillowImage.Resampling.BICUBIC).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a dataset of 24 JPEGs and PNGs, the first four of one size."""
    path = str(tmp_path_factory.mktemp("pictures") / "d.fl")
    schema = {"image": fastload.Image(), "gray": fastload.Image("L"), "maybe": fastload.Image(nullable=True)}
    with fastload.Writer(path, schema=schema) as writer:
        for i in range(24):
            size = (48, 40) if i < 4 else (40 + i, 70 - i)
            image = _encoded(i, "PNG" if i % 3 == 0 else "JPEG", size)
            writer.append({"image": image, "gray": image, "maybe": None if i % 4 == 1 else image})
    return path


def _plan(path: str, names: tuple[str, ...] | None = None, ragged: str = "list", **operations: Any) -> Plan:
    source = fastload.open(path).sources[0]
    names = names or tuple(source.schema)
    return Plan(
        (source,),
        tuple(FieldPlan(n, source.schema[n], tuple(operations.get(n, ())), 1, ragged) for n in names),
        seed=5,
    )


def _same(a: Any, b: Any) -> None:
    if isinstance(a, Jagged):
        assert isinstance(b, Jagged)
        _same(a.values, b.values)
        _same(a.offsets, b.offsets)
    elif isinstance(a, (np.ndarray, np.generic)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, list):
        assert isinstance(b, list)
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            _same(left, right)
    else:
        assert type(a) is type(b)
        assert a == b


JAGGED = ("x", "tokens", "boxes")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=40), max_size=6),
    names=st.lists(st.sampled_from(sorted(SCHEMA)), min_size=1, unique=True),
    ragged=st.sampled_from(["list", "pad", "jagged"]),
    workers=st.integers(0, 3),
    budget=st.sampled_from([None, 1, 20_000]),
)
def test_drawn_plans(
    rich: str, batches: list[list[int]], names: list[str], ragged: str, workers: int, budget: int | None
) -> None:
    chosen = tuple(name for name in names if ragged != "jagged" or name in JAGGED) or ("tokens",)
    plan = _plan(rich, chosen, ragged)
    assert why_not_native(plan) is None
    native, python = NativeEngine(plan, workers, budget), PythonEngine(plan, 0)
    for batch in batches:
        native.submit(indices_of(batch))
        python.submit(indices_of(batch))
    for _ in batches:
        made, expected = native.next(), python.next()
        assert list(made) == list(expected) == list(chosen)
        for name in chosen:
            _same(made[name], expected[name])
    native.close()
    python.close()


FLOAT = [T.ToDtype("float32", scale=True), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.3))]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "operations",
    [
        [T.RandomResizedCrop(32), T.RandomHorizontalFlip()],
        [T.Resize(36), T.CenterCrop(32), T.Layout("NHWC")],
        [T.RandomResizedCrop(24), *FLOAT],
        [T.RandomResizedCrop(24), *FLOAT[:1], T.ToDtype("bfloat16"), T.Layout("channels_last")],
        [
            T.RandomCrop(24, 4, True),
            T.RandomVerticalFlip(),
            T.Grayscale(),
            T.RandomErasing(),
            T.Layout("NHWC"),
        ],
    ],
    ids=["uint8", "nhwc", "float32", "bfloat16", "gray"],
)
def test_images(pictures: str, workers: int, operations: list[Any]) -> None:
    plan = _plan(pictures, ("image", "maybe"), image=operations, maybe=operations)
    native, python = NativeEngine(plan, workers), PythonEngine(plan, 0)
    indices = BatchIndices(np.arange(24) * 7, np.zeros(24, np.int64), np.arange(24)[::-1].copy(), epoch=3)
    for engine in (native, python):
        engine.submit(indices)
    made, expected = native.next(), python.next()
    a, b = made["image"], expected["image"]
    assert isinstance(a, np.ndarray)
    assert isinstance(b, np.ndarray)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    tensors, references = to_torch(made, plan), to_torch(expected, plan)
    image, reference = tensors["image"], references["image"]
    assert (image.dtype, image.stride()) == (reference.dtype, reference.stride())
    step = 1.0 if a.dtype == np.uint8 else 2 / 255 / 0.2
    assert (image.float() - reference.float()).abs().max() <= step
    for left, right in zip(tensors["maybe"], references["maybe"], strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            assert (left.float() - right.float()).abs().max() <= step
    native.close()
    python.close()


def test_images_as_they_are_must_have_one_size(pictures: str) -> None:
    plan = _plan(pictures, ("image", "gray"))
    for engine in (NativeEngine(plan, 2), PythonEngine(plan, 0)):
        engine.submit(indices_of([0, 1, 2, 3]))
        engine.submit(indices_of([1, 2, 9]))
        made = engine.next()
        assert [made[name].shape for name in made] == [(4, 3, 40, 48), (4, 1, 40, 48)]  # type: ignore[union-attr]
        with pytest.raises(EngineError, match="records 1 and 9 cannot be put into one batch") as caught:
            engine.next()
        assert (caught.value.record, caught.value.field) == (9, "image")
        engine.close()


def test_what_runs_in_python(pictures: str, rich: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_engine(_plan(rich), 0).name == "native"
    for plan, word in [
        (_plan(pictures, ("maybe",)), "nullable"),
        (_plan(pictures, ("image",), image=[T.Resize(8, interpolation="lanczos"), T.Call(np.copy)]), "Call"),
        (_plan(rich, ("x",), x=[T.Call(np.copy)]), "operations run in Python"),
        (_plan(rich, ("wave",), "jagged"), "jagged"),
    ]:
        engine = make_engine(plan, 0)
        assert engine.name == "python"
        assert word in str(engine.stats()["reason"])
        engine.close()
    monkeypatch.setenv("FASTLOAD_BACKEND", "python")
    assert "FASTLOAD_BACKEND" in str(why_not_native(_plan(rich)))


def _damage(path: str, marker: bytes) -> None:
    (file,) = Path(path).glob("*.shard")
    data = bytearray(file.read_bytes())
    data[data.index(marker)] ^= 1
    file.unlink()
    file.write_bytes(data)


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_name_the_record(tmp_path: Path, workers: int) -> None:
    path = str(tmp_path / "d.fl")
    with fastload.Writer(path, schema={"b": fastload.Bytes(), "i": fastload.Image()}) as writer:
        for i in range(50):
            image = b"no image" if i == 30 else _encoded(i, "JPEG", (8, 8))
            writer.append({"b": b"value %03d." % i, "i": image})
    _damage(path, b"value 017.")
    plan = _plan(path)
    failures: list[FastloadError] = []
    for engine in (NativeEngine(plan, workers), PythonEngine(plan, 0)):
        for batch in ([1, 2], [40, 17, 30], [30, 31], [50], [3]):
            engine.submit(indices_of(batch))
        assert engine.next()["b"] == [b"value 001.", b"value 002."]
        for kind, record, field in [
            (CorruptionError, 17, "b"),
            (DecodeError, 30, "i"),
            (UsageError, None, None),
        ]:
            with pytest.raises(kind) as caught:
                engine.next()
            failures.append(caught.value)
            if record is not None:
                assert (caught.value.record, caught.value.field) == (record, field)
                assert str(caught.value.path).startswith(path)
        assert engine.next()["b"] == [b"value 003."]
        with pytest.raises(EngineError):
            engine.next()
        engine.close()
        with pytest.raises(EngineError):
            engine.submit(indices_of([1]))
    assert [type(error) for error in failures[:3]] == [type(error) for error in failures[3:]]


def test_values_that_contradict_the_schema_name_the_record(
    rich: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload.engine import native

    def refuse(field: Any, data: Any) -> Any:
        if b"record 7 " in bytes(data):
            raise DecodeError("broken text")
        return bytes(data)

    monkeypatch.setattr(native, "decode_value", refuse)
    engine = NativeEngine(_plan(rich, ("text",)), 1)
    engine.submit(indices_of([5, 6, 7]))
    with pytest.raises(DecodeError, match="broken text") as caught:
        engine.next()
    assert (caught.value.record, caught.value.field) == (7, "text")
    engine.close()


def test_kept_batches_are_never_overwritten(wide: str) -> None:
    engine = NativeEngine(_plan(wide), 2)
    orders = [np.random.default_rng(i).permutation(400)[:64] for i in range(50)]
    for order in orders[:3]:
        engine.submit(indices_of(order))
    kept = []
    for number in range(50):
        kept.append(engine.next()["x"])
        if number + 3 < 50:
            engine.submit(indices_of(orders[number + 3]))
    engine.close()
    for order, batch in zip(orders, kept, strict=True):
        np.testing.assert_array_equal(batch, np.repeat((order % 251)[:, None], 4096, 1))


def test_dropped_batches_are_used_again(wide: str) -> None:
    import torch

    plan = _plan(wide)
    engine = NativeEngine(plan, 2)
    addresses = set()
    for number in range(40):
        engine.submit(indices_of(np.arange(number, number + 64)))
        view: Any = to_torch(engine.next(), plan)["x"][3:, ::2]
        assert isinstance(view, torch.Tensor)
        addresses.add(view.data_ptr())
    assert len(addresses) <= 3
    assert int(engine.stats()["pool_bytes"]) <= 4 * 64 * 4096
    del view
    engine.close()
    assert engine.stats()["pool_bytes"] == 0


def _threads() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads through /proc")
def test_no_thread_is_left(wide: str) -> None:
    before = _threads()
    engines = [NativeEngine(_plan(wide), 3) for _ in range(3)]
    assert _threads() == before + 9
    for engine in engines:
        engine.submit(indices_of(range(100)))
    engines[0].close()
    engines[0].close()
    del engine
    engines.clear()  # the others are dropped as they are
    assert _threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child(wide: str) -> None:
    engine = NativeEngine(_plan(wide), 2)
    engine.submit(indices_of(range(10)))
    batch = engine.next()["x"]
    child = os.fork()
    if child == 0:
        try:
            for call in (lambda: engine.submit(indices_of([1])), engine.next):
                try:
                    call()
                    os._exit(1)
                except EngineError:
                    pass
            right = np.array_equal(np.asarray(batch)[:, 0], np.arange(10))
            fresh = NativeEngine(_plan(wide), 2)
            fresh.submit(indices_of([4]))
            right = right and int(np.asarray(fresh.next()["x"])[0, 0]) == 4
            fresh.close()
            engine.close()
            del engine, batch
            gc.collect()
            os._exit(0 if right else 2)
        except BaseException:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    engine.submit(indices_of([7]))
    assert int(np.asarray(engine.next()["x"])[0, 0]) == 7
    engine.close()


SCRIPT = """
import sys
import fastload
from fastload.engine import NativeEngine, FieldPlan, Plan, indices_of
source = fastload.open(sys.argv[1]).sources[0]
plan = Plan((source,), tuple(FieldPlan(name, source.schema[name]) for name in sys.argv[2].split(",")))
engines = [NativeEngine(plan, 3) for _ in range(4)]
for engine in engines:
    for _ in range(20):
        engine.submit(indices_of([0, 3, 0, 3, 0, 3, 0, 3]))
kept = [engine.next() for engine in engines]
print("made")
"""


@pytest.mark.parametrize("names", ["image", "gray", "image,gray"])
def test_exit_with_engines_alive(pictures: str, names: str) -> None:
    """Workers are decoding PNGs in Python when the interpreter goes."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, pictures, names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "made\n", "")


def test_interrupt_and_timeout(pictures: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    original = T.decode_image

    def slow(encoded: Any, mode: str = "RGB") -> Any:
        go.wait(20)
        return original(encoded, mode)

    monkeypatch.setattr(T, "decode_image", slow)
    engine = NativeEngine(_plan(pictures, ("image",)), 1)
    engine.submit(indices_of([0]))
    with pytest.raises(EngineError, match="timeout"):
        engine.next(0.05)
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.next()
    assert time.monotonic() - started < 10
    go.set()
    assert np.asarray(engine.next()["image"]).shape == (1, 3, 40, 48)
    engine.close()


def test_given_memory(rich: str, pictures: str) -> None:
    plan = _plan(rich, ("x", "y", "half", "maybe", "tokens"), "pad")
    engine, pinned = NativeEngine(plan, 2), PinnedBatch(pin=False)
    engine.submit(indices_of([3, 9]), pinned)
    made = engine.next()
    tensors = to_torch(made, plan, pinned)
    for name in ("x", "y", "half"):
        storage = pinned.storage(name)
        assert storage is not None
        assert tensors[name].untyped_storage().data_ptr() == storage.data_ptr()
        assert tensors[name].untyped_storage()._cdata == storage.untyped_storage()._cdata
    assert pinned.storage("tokens") is None
    assert pinned.storage("maybe") is None
    assert str(tensors["half"].dtype) == "torch.bfloat16"
    del pinned
    np.testing.assert_array_equal(tensors["x"][1], _record(9)["x"])
    engine.close()

    operations = [T.RandomResizedCrop(16), T.Layout("channels_last")]
    plan = _plan(pictures, ("image",), image=operations)
    engine, pinned = NativeEngine(plan, 0), PinnedBatch(pin=False)
    engine.submit(indices_of([1, 2]), pinned)
    image = to_torch(engine.next(), plan, pinned)["image"]
    assert image.stride() == (16 * 16 * 3, 1, 16 * 3, 3)
    engine.close()


def test_tensors(rich: str) -> None:
    import torch

    plan = _plan(rich, JAGGED, "jagged")
    engine = NativeEngine(plan, 0)
    engine.submit(indices_of([2, 0, 5]))
    tensors = to_torch(engine.next(), plan)
    tokens = tensors["tokens"]
    assert isinstance(tokens, JaggedTensor)
    assert tokens.offsets.tolist() == [0, 2, 2, 7]
    assert tokens.values.dtype == torch.uint16
    engine.close()

    plan = _plan(rich, ("maybe", "maybe_label", "maybe_tokens", "text"))
    for engine in (NativeEngine(plan, 0), PythonEngine(plan, 0)):
        engine.submit(indices_of([1, 4, 5]))
        tensors = to_torch(engine.next(), plan)
        assert tensors["maybe"][1] is None
        assert tensors["maybe"][0] == torch.tensor(1.0)
        assert tensors["maybe_label"] == [1, 0, None]
        assert [None if t is None else t.tolist() for t in tensors["maybe_tokens"]] == [[0], [], [0]]
        assert tensors["text"][0] == "record 1 é"
        engine.close()


def test_a_full_shuffle_over_many_shards_opens_each_once(tmp_path: Path) -> None:
    path = tmp_path / "many.fl"
    with fastload.Writer(str(path), {"x": fastload.Tensor("uint8", (512,))}, shard_size=4096) as writer:
        for number in range(3000):
            writer.append({"x": np.full(512, number % 251, np.uint8)})
    dataset = fastload.open(str(path))
    shards = dataset.sources[0].table.shards
    assert shards > 300
    with fastload.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=2) as loader:
        assert sum(len(batch["x"]) for batch in loader) == 3000
    native = dataset.sources[0].native()
    # None was closed for another's sake: opening one again costs more than a hundred small records.
    assert native.open_shards == shards
