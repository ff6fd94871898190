from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import fastload
from fastload import transforms as T
from fastload.dataset import Dataset
from fastload.errors import DecodeError, NotADatasetError, RecordError, SchemaError, UsageError

pytestmark = pytest.mark.usefixtures("backend")

SCHEMA = {
    "image": fastload.Image(),
    "label": fastload.Label(["cat", "dog", "owl"]),
    "x": fastload.Tensor("float32", (2, 3)),
    "s": fastload.Scalar("int16"),
    "half": fastload.Scalar("bfloat16"),
    "t": fastload.Ragged("uint16"),
    "name": fastload.Str(),
    "tags": fastload.StrList(),
    "raw": fastload.Bytes(),
    "info": fastload.Json(),
    "note": fastload.Str(nullable=True),
    "score": fastload.Scalar("float64", nullable=True),
}


def png(height: int, width: int, value: int) -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def record(i: int) -> dict[str, object]:
    return {
        "image": png(10 + i % 3, 12, i),
        "label": i % 3,
        "x": np.full((2, 3), i, np.float32),
        "s": i,
        "half": float(i),
        "t": np.arange(i % 5, dtype=np.uint16),
        "name": f"record {i}",
        "tags": ["a"] * (i % 3),
        "raw": bytes([i]),
        "info": {"i": i},
        "note": None if i % 2 else "even",
        "score": None if i % 3 else i / 2,
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("dataset") / "all.fl")
    with fastload.Writer(folder, schema=SCHEMA, shard_size=2048, metadata={"made": "here"}) as writer:
        for i in range(20):
            writer.append(record(i))
    return folder


@pytest.fixture
def ds(path: str) -> Dataset:
    return fastload.open(path)


def numbers(ds: Dataset) -> list[int]:
    return [int(sample["s"]) for sample in ds.select_columns("s")]


def test_a_sample_in_torch(ds: Dataset) -> None:
    sample = ds[5]
    assert list(sample) == list(SCHEMA)
    assert sample["image"].dtype == torch.uint8
    assert sample["image"].shape == (3, 12, 12)
    assert (sample["image"] == 5).all()
    assert sample["label"] == 2
    assert type(sample["label"]) is int
    assert torch.equal(sample["x"], torch.full((2, 3), 5.0))
    assert sample["s"].dtype == torch.int16
    assert sample["s"].shape == ()
    assert sample["half"].dtype == torch.bfloat16
    assert float(sample["half"]) == 5.0
    assert sample["t"].dtype == torch.uint16
    assert len(sample["t"]) == 0
    assert (sample["name"], sample["tags"], sample["raw"]) == ("record 5", ["a", "a"], b"\x05")
    assert sample["info"] == {"i": 5}
    assert sample["note"] is None
    assert ds[4]["note"] == "even"
    assert sample["score"] is None
    assert float(ds[6]["score"]) == 3.0


def test_a_sample_in_numpy(ds: Dataset) -> None:
    sample = ds.with_format("numpy")[7]
    assert isinstance(sample["image"], np.ndarray)
    assert sample["image"].shape == (3, 11, 12)
    assert sample["label"] == 1
    assert type(sample["label"]) is int
    assert isinstance(sample["s"], np.int16)
    assert sample["half"] == 0x40E0  # the bits of 7.0
    assert sample["t"].tolist() == [0, 1]


def test_what_default_collate_makes_is_what_a_batch_is(ds: Dataset) -> None:
    ds = ds.select_columns(["label", "x", "s", "half"])
    batch = torch.utils.data.default_collate([ds[i] for i in range(4)])
    (native,) = fastload.DataLoader(ds.take(4), batch_size=4)
    assert list(native) == list(batch)
    for name, value in batch.items():
        assert value.dtype == native[name].dtype
        assert torch.equal(value, native[name])


def test_length_and_indices(ds: Dataset) -> None:
    assert len(ds) == 20
    assert int(ds[-1]["s"]) == 19
    assert int(ds[np.int64(3)]["s"]) == 3
    assert int(ds[torch.tensor(3)]["s"]) == 3
    for wrong in (20, -21):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range: the dataset has 20 records"):
            ds[wrong]
    for kind in ("s", 1.5, None):
        with pytest.raises(TypeError, match="indexed by an integer"):
            ds[kind]  # type: ignore[call-overload]


def test_views(ds: Dataset) -> None:
    assert numbers(ds) == list(range(20))
    assert numbers(ds[3:17:5]) == [3, 8, 13]
    assert numbers(ds[::-6]) == [19, 13, 7, 1]
    assert numbers(ds[[3, -1, 3]]) == [3, 19, 3]
    assert numbers(ds[np.array([2, 1])]) == [2, 1]
    assert numbers(ds[torch.tensor([2, 1])]) == [2, 1]
    assert numbers(ds[range(10, 0, -4)]) == [10, 6, 2]
    assert numbers(ds[range(0)]) == []
    assert numbers(ds[[]]) == []
    assert numbers(ds.take(2)) == [0, 1]
    assert len(ds.take(100)) == 20
    assert numbers(ds[10:][[1, 0]][::-1]) == [10, 11]
    assert numbers(ds[18:] + ds[:1] + ds[5:7]) == [18, 19, 0, 5, 6]
    with pytest.raises(IndexError):
        ds[[20]]
    with pytest.raises(IndexError):
        ds[range(25)]
    with pytest.raises(UsageError):
        ds.take(-1)


def test_a_range_view_holds_no_list(ds: Dataset) -> None:
    for view in (ds[3:17:5], ds[range(10, 0, -4)], ds.take(3), ds + ds[:5]):
        assert len(view.selection.picked_records) == 0
    assert len((ds + ds).sources) == 1


def test_the_schema_and_its_classes(ds: Dataset) -> None:
    assert list(ds.schema) == list(SCHEMA)
    assert ds.metadata == {"made": "here"}
    assert ds.classes == ("cat", "dog", "owl")
    assert ds.class_to_idx == {"cat": 0, "dog": 1, "owl": 2}
    with pytest.raises(UsageError, match="one Label field, and the dataset has none"):
        ds.select_columns("s").classes  # noqa: B018


def test_several_label_fields(tmp_path: Path) -> None:
    schema = {"a": fastload.Label(["x"]), "b": fastload.Label(["y"])}
    with fastload.Writer(str(tmp_path / "d.fl"), schema=schema) as writer:
        writer.append({"a": 0, "b": 0})
    ds = fastload.open(tmp_path / "d.fl")
    with pytest.raises(UsageError, match=r"the dataset has a, b: ask the field"):
        ds.classes  # noqa: B018
    assert ds.select_columns("b").classes == ("y",)


def test_columns_and_containers(ds: Dataset) -> None:
    assert list(ds.select_columns(["s", "label"])[0]) == ["s", "label"]
    assert ds.as_tuple("name", "label")[4] == ("record 4", 1)
    assert len(ds.as_tuple()[0]) == len(SCHEMA)
    assert ds.as_tuple("label", "name").select_columns("name")[1] == ("record 1",)
    for wrong in (["nothing"], [], ["s", "s"]):
        with pytest.raises(UsageError):
            ds.select_columns(wrong)
    with pytest.raises(UsageError, match="there is no field 's': the fields are: label"):
        ds.select_columns("label").select_columns("s")
    with pytest.raises(UsageError, match="unknown format"):
        ds.with_format("jax")  # type: ignore[arg-type]


def test_transforms(ds: Dataset) -> None:
    small = ds.transform(image=[T.Resize((4, 6)), T.ToDtype(torch.float32, scale=True)])
    image = small[5]["image"]
    assert image.shape == (3, 4, 6)
    assert torch.allclose(image, torch.full((3, 4, 6), 5 / 255))
    assert ds[5]["image"].dtype == torch.uint8  # views change nothing
    assert small.transform(image=T.CenterCrop(2))[5]["image"].shape == (3, 2, 2)
    assert small.transform(image=None)[5]["image"].shape == (3, 12, 12)


def test_callables_on_any_field(ds: Dataset) -> None:
    changed = ds.transform(
        image=lambda image: image[:, :2, :2],
        x=lambda x: x.sum(),
        name=[str.upper, len],
        label=lambda label: label * 10,
        t=lambda t: torch.from_numpy(t.astype(np.int64)),
    )
    sample = changed[7]
    assert sample["image"].shape == (3, 2, 2)
    assert float(sample["x"]) == 42.0
    assert sample["name"] == 8
    assert sample["label"] == 10
    assert sample["t"].tolist() == [0, 1]
    batch = next(iter(fastload.DataLoader(changed.select_columns(["x", "name"]), batch_size=3)))
    assert batch["x"].tolist() == [0.0, 6.0, 12.0]
    assert batch["name"].tolist() == [8, 8, 8]


def test_callables_may_change_a_labels_type(ds: Dataset) -> None:
    names = ds.classes
    assert ds.transform(label=lambda label: names[label])[4]["label"] == "dog"
    hot = ds.transform(label=lambda label: np.eye(3)[label])
    assert hot[4]["label"].tolist() == [0.0, 1.0, 0.0]
    batch = next(iter(fastload.DataLoader(hot.select_columns("label"), batch_size=2)))
    assert batch["label"].tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


def test_nullable_labels(tmp_path: Path) -> None:
    path = str(tmp_path / "labels.fl")
    with fastload.Writer(path, schema={"y": fastload.Label(["a", "b"], nullable=True)}) as writer:
        for value in (1, None, "a"):
            writer.append({"y": value})
    ds = fastload.open(path)
    assert [sample["y"] for sample in ds] == [1, None, 0]
    (batch,) = fastload.DataLoader(ds, batch_size=3)
    assert batch["y"] == [1, None, 0]


def test_transforms_that_do_not_fit(ds: Dataset) -> None:
    with pytest.raises(UsageError, match="image operations are for Image fields"):
        ds.transform(x=T.Resize(4))
    with pytest.raises(UsageError, match="there is no field 'picture'"):
        ds.transform(picture=T.Resize(4))
    with pytest.raises(UsageError, match="Normalize needs float"):
        ds.transform(image=T.Normalize([0.5], [0.5]))
    with pytest.raises(UsageError, match="callable"):
        ds.transform(image=3)


def test_a_failing_callable_names_the_record(ds: Dataset) -> None:
    bad = ds.transform(name=lambda name: {}[name])
    with pytest.raises(fastload.errors.EngineError, match=r"KeyError.*record 3.*'name'") as caught:
        bad[3]
    assert caught.value.record == 3
    assert isinstance(caught.value.__cause__, KeyError)


def test_draws_follow_torchs_generator(ds: Dataset) -> None:
    crops = ds.select_columns("image").transform(image=lambda image: torch.randint(1 << 30, (1, 1, 1)))

    def drawn() -> list[int]:
        return [int(sample["image"]) for sample in crops.__getitems__(range(5))]

    torch.manual_seed(3)
    first, second = drawn(), drawn()
    assert len({*first, *second}) == 10
    torch.manual_seed(3)
    assert drawn() == first


def test_a_dataset_without_transforms_draws_nothing(ds: Dataset) -> None:
    before = torch.get_rng_state()
    ds[0]
    assert torch.equal(before, torch.get_rng_state())


def test_sample_reproduces(ds: Dataset) -> None:
    view = ds[2:].transform(image=lambda image: torch.randint(1 << 30, (1, 1, 1))).select_columns("image")
    loader = fastload.DataLoader(view, batch_size=6, seed=11)
    loader.set_epoch(4)
    (batch, *_) = loader
    again = [view.sample(i, seed=11, epoch=4)["image"] for i in range(6)]
    assert torch.equal(batch["image"], torch.stack(again))
    assert torch.equal(view.sample(9, seed=11, epoch=4, position=2)["image"], again[2])
    assert not torch.equal(view.sample(2, seed=12, epoch=4)["image"], again[2])
    with pytest.raises(IndexError):
        view.sample(18)


def test_concatenation(ds: Dataset, record_dataset: str) -> None:
    with pytest.raises(SchemaError, match="their schemas differ in"):
        ds + fastload.open(record_dataset)
    with pytest.raises(SchemaError, match="transforms differ"):
        ds + ds.transform(image=T.Resize(3))
    with pytest.raises(TypeError):
        ds + 1  # type: ignore[operator]
    again = fastload.open(ds.sources[0].folder)
    both = ds[:2] + again[3:4] + ds[[0]]
    assert len(both.sources) == 2
    assert numbers(both) == [0, 1, 3, 0]


def test_ragged_modes(ds: Dataset) -> None:
    view = ds.select_columns("t")[2:5]
    (listed,) = fastload.DataLoader(view, batch_size=3)
    assert [value.tolist() for value in listed["t"]] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    (padded,) = fastload.DataLoader(view.with_ragged(t="pad"), batch_size=3)
    assert padded["t"].tolist() == [[0, 1, 0, 0], [0, 1, 2, 0], [0, 1, 2, 3]]
    (jagged,) = fastload.DataLoader(view.with_ragged(t="jagged"), batch_size=3)
    assert [value.tolist() for value in jagged["t"].nested().unbind()] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert view.with_ragged(t="pad")[0]["t"].tolist() == [0, 1]
    for field, mode in (("t", "stack"), ("s", "pad"), ("q", "pad")):
        with pytest.raises(UsageError):
            ds.with_ragged(**{field: mode})


def test_getitems(ds: Dataset) -> None:
    samples = ds.__getitems__([3, -1])
    assert [int(sample["s"]) for sample in samples] == [3, 19]
    assert [sample["image"].shape[1] for sample in samples] == [10, 11]
    assert ds.__getitems__([]) == []
    plain = ds.select_columns(["label", "x", "note", "t"]).__getitems__([0, 1, 2])
    assert [sample["label"] for sample in plain] == [0, 1, 2]
    assert [sample["note"] for sample in plain] == ["even", None, "even"]


def test_fingerprint(ds: Dataset, path: str) -> None:
    assert ds.fingerprint == fastload.open(path).fingerprint
    assert len({view.fingerprint for view in (ds, ds[1:], ds[[0, 1]], ds[[1, 0]], ds + ds)}) == 5


def test_repr(ds: Dataset) -> None:
    text = repr(ds[:3].transform(image=T.Resize(3)))
    assert text.startswith("Dataset of 3 records from ")
    assert "label: Label(('cat', 'dog', 'owl'))" in text
    assert "image: Image() -> Resize(size=3" in text


def test_pickle(ds: Dataset) -> None:
    ds[0]
    again = pickle.loads(pickle.dumps(ds[5:].select_columns("s")))
    assert numbers(again) == list(range(5, 20))


def _child(ds: Dataset, queue: multiprocessing.queues.Queue[list[int]]) -> None:
    queue.put(numbers(ds))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes(ds: Dataset, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    ds[0]
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_child, args=(ds, queue))
    process.start()
    assert queue.get(timeout=60) == list(range(20))
    process.join(30)
    assert process.exitcode == 0


def test_threads(ds: Dataset) -> None:
    failures: list[object] = []

    def read(offset: int) -> None:
        try:
            for i in range(40):
                n = (i + offset) % 20
                assert int(ds[n]["s"]) == n
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(offset,)) for offset in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("workers", [0, 2])
def test_in_torchs_own_loader(ds: Dataset, workers: int) -> None:
    view = ds.select_columns(["label", "s"]).as_tuple()
    loader = torch.utils.data.DataLoader(view, batch_size=7, num_workers=workers)
    labels, values = zip(*loader, strict=True)
    assert torch.cat(labels).tolist() == [i % 3 for i in range(20)]
    assert torch.cat(values).tolist() == list(range(20))


def test_epochs_differ_in_torchs_own_loader(ds: Dataset) -> None:
    view = ds[:4].select_columns("image").transform(image=lambda image: torch.randint(1 << 30, (1, 1, 1)))
    loader = torch.utils.data.DataLoader(view, batch_size=2, num_workers=2, persistent_workers=True)
    drawn = [int(value) for _ in range(3) for batch in loader for value in batch["image"]]
    assert len(set(drawn)) == 12


def test_numpy_needs_no_torch(path: str) -> None:
    code = f"""
import sys, fastload
from fastload import transforms as T
ds = fastload.open({path!r}).with_format("numpy").transform(image=T.RandomHorizontalFlip())
ds[0], ds.__getitems__([1, 2])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ), timeout=60)


def test_open(path: str, tmp_path: Path) -> None:
    assert len(fastload.open(Path(path), "default", verify="always")) == 20
    with pytest.raises(NotADatasetError):
        fastload.open(tmp_path)
    with pytest.raises(UsageError, match="no split 'train'"):
        fastload.open(path, "train")
    with pytest.raises(UsageError, match="verify"):
        fastload.open(path, verify="sometimes")  # type: ignore[arg-type]


def test_random_views_compose_as_lists(ds: Dataset) -> None:
    chooser = random.Random(0)
    for _ in range(20):
        view, model = ds, list(range(20))
        for _ in range(4):
            if chooser.random() < 0.5 and model:
                picks = [chooser.randrange(-len(model), len(model)) for _ in range(chooser.randrange(8))]
                view, model = view[picks], [model[i] for i in picks]
            else:
                key = slice(
                    chooser.randrange(-5, 25), chooser.randrange(-5, 25), chooser.choice([-2, -1, 1, 3])
                )
                view, model = view[key], model[key]
        assert numbers(view) == model


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_arrays_are_stored_as_raw_pixels(tmp_path: Path, mode: str) -> None:
    channels = 1 if mode == "L" else 3
    schema = {"image": fastload.Image(mode=mode, nullable=True, codec="zstd" if mode == "L" else "raw")}
    pixels = [np.random.default_rng(i).integers(0, 256, (20 + i, 31, channels), np.uint8) for i in range(3)]
    with fastload.Writer(str(tmp_path / "d.fl"), schema=schema) as writer:
        for array in (pixels[0], torch.from_numpy(pixels[1]), None, pixels[2]):
            writer.append({"image": array})
    ds = fastload.open(str(tmp_path / "d.fl")).with_format("numpy")
    for index, expected in zip((0, 1, 3), pixels, strict=True):
        assert np.array_equal(ds[index]["image"], expected.transpose(2, 0, 1))
    steps = [T.RandomResizedCrop((17, 40)), T.RandomHorizontalFlip(), T.ToDtype("float16", scale=True)]
    made = ds.transform(image=steps).sample(3, seed=5)["image"]
    assert np.array_equal(made, T.apply_program(steps, pixels[2], (5, 0, 3, 0)))


def test_what_are_no_pixels(tmp_path: Path) -> None:
    with fastload.Writer(str(tmp_path / "d.fl"), schema={"image": fastload.Image()}) as writer:
        writer.append({"image": b"P6\n4 1\n255\nabcdefghijk"})
        for array in (
            np.zeros((3, 4, 4), np.uint8),
            np.zeros((0, 4, 3), np.uint8),
            np.zeros((4, 4, 1), np.uint8),
        ):
            with pytest.raises(RecordError, match="pixels of shape"):
                writer.append({"image": array})
        with pytest.raises(RecordError, match="floating-point"):
            writer.append({"image": np.zeros((4, 4, 3))})
    with pytest.raises(DecodeError, match="truncated"):
        fastload.open(str(tmp_path / "d.fl"))[0]


def test_window(tmp_path: Path) -> None:
    path = str(tmp_path / "numbers.fl")
    with fastload.Writer(path, schema={"x": fastload.Tensor("uint8", (1000,))}, shard_size=10_000) as writer:
        for i in range(101):
            writer.append({"x": np.full(1000, i, np.uint8)})
    ds = fastload.open(path)
    starts = ds.sources[0].table.starts.tolist()
    assert len(starts) > 5
    window = ds.window("20kB")
    assert window.chunks.tolist() == starts[:-1]
    assert window.streams == 1
    assert 5 <= window.block <= 20
    assert ds.window("1GB").block <= 101
    assert (ds[50:] + ds[:50]).window(20_000).chunks.tolist()[0] == 0
    assert len(ds[:0].window(1).chunks) == 0
    entries = ds.selection.order(1, 2, shuffle=True, window=window).locate(np.arange(101))[1]
    assert sorted(entries.tolist()) == list(range(101))
