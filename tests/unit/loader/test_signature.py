"""The DataLoader in the place of torch's: its signature, its checks, and loaders rebuilt from attributes."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch
from torch.utils import data

import fastload
from fastload.errors import UsageError
from fastload.loader import arguments

from .ways import Numbers, Plain, Stream, numbers

OURS: dict[str, Any] = {
    "seed": 5,
    "buffer_bytes": "1MB",
    "on_error": "substitute",
    "shard": True,
    "mesh": None,
    "global_batch_size": None,
    "shuffle_window": "1MB",
    "pad": False,
    "seed_by": "sample",
    "worker_method": "thread",
    "device": "cpu",
    "output": "torch",
    "normalize_on": "host",
}


def test_torchs_parameters_are_there_with_their_defaults_and_places() -> None:
    theirs = inspect.signature(data.DataLoader.__init__).parameters
    ours = inspect.signature(fastload.DataLoader.__init__).parameters
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default, name
        assert ours[name].kind == parameter.kind, name
    positional = [name for name, each in theirs.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(positional)] == positional
    extras = [
        name for name in ours if name not in theirs and ours[name].kind is not inspect.Parameter.VAR_KEYWORD
    ]
    assert extras == list(OURS)


def test_torchs_attributes_are_there() -> None:
    theirs, ours = data.DataLoader(Numbers(), 4), fastload.DataLoader(Numbers(), 4)
    assert vars(theirs).keys() <= vars(ours).keys()
    for name in ("batch_size", "num_workers", "drop_last", "timeout", "prefetch_factor", "in_order"):
        assert getattr(theirs, name) == getattr(ours, name)
        assert vars(theirs)[name] == vars(ours)[name]


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"num_workers": 1, "prefetch_factor": -1},
        {"persistent_workers": True},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "bad"},
        {"num_workers": 1, "multiprocessing_context": object},
        {"dataset": Plain(), "shuffle": True},
        {"dataset": Plain(), "sampler": [1]},
        {"dataset": Plain(), "batch_sampler": [[1]]},
    ],
    ids="-".join,  # not the values: an object's address differs in each process that runs tests
)
def test_checks_and_their_words_are_torchs(wrong: dict[str, Any]) -> None:
    wrong = dict(wrong)
    dataset = wrong.pop("dataset", Numbers())
    with pytest.raises(Exception) as theirs:
        data.DataLoader(dataset, **wrong)
    with pytest.raises(type(theirs.value)) as ours:
        fastload.DataLoader(dataset, **wrong)
    assert str(ours.value) == str(theirs.value)


def test_attributes_that_cannot_be_set_afterwards() -> None:
    loader = fastload.DataLoader(Numbers(), 4)
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader"):
            setattr(loader, name, None)


def test_unknown_arguments_are_pythons_error() -> None:
    with pytest.raises(
        TypeError, match=r"DataLoader.__init__\(\) got an unexpected keyword argument 'colate'"
    ):
        fastload.DataLoader(Numbers(), colate=None)


def test_a_newer_torchs_arguments_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    original = data.DataLoader.__init__

    def newer(self: Any, *args: Any, hurry: bool = False, **kwargs: Any) -> None:
        seen["hurry"] = hurry
        original(self, *args, **kwargs)

    monkeypatch.setattr(data.DataLoader, "__init__", newer)
    monkeypatch.setitem(
        _mutable(monkeypatch), "hurry", inspect.Parameter("hurry", inspect.Parameter.KEYWORD_ONLY)
    )
    fastload.DataLoader(Numbers(), 4, hurry=True)
    assert seen == {"hurry": True}


def _mutable(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    known = dict(arguments.TORCH_PARAMETERS)
    monkeypatch.setattr(arguments, "TORCH_PARAMETERS", known)
    return known


def _rebuilt(loader: data.DataLoader[Any], **others: Any) -> Any:
    """Rebuild a loader as Lightning does: from its public attributes by its signature, with a sampler."""
    parameters = inspect.signature(type(loader).__init__).parameters
    given = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    given["multiprocessing_context"] = loader.multiprocessing_context
    chosen = {name: given[name] for name in parameters if name in given}
    chosen.update(sampler=loader.sampler, shuffle=False, batch_sampler=None)
    if isinstance(loader.dataset, data.IterableDataset):
        chosen["sampler"] = None
    return type(loader)(**{**chosen, **others})


def _same_epochs(*loaders: fastload.DataLoader[Any]) -> None:
    for epoch in (0, 3):
        batches = []
        for loader in loaders:  # a sampler of fastload's that two share counts the epochs of both
            loader.set_epoch(epoch)
            batches.append(numbers(loader))
        assert batches[0] == batches[1]


def test_a_rebuilt_loader_keeps_what_is_ours(numbers_path: str) -> None:
    loader = fastload.DataLoader(fastload.open(numbers_path), 7, shuffle=True, drop_last=True, **OURS)
    again = _rebuilt(loader)
    assert {name: getattr(again, name) for name in OURS} == OURS
    assert (again.batch_size, again.drop_last) == (7, True)
    _same_epochs(again, loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rebuilt_loader_of_a_python_dataset_keeps_its_order(workers: int) -> None:
    loader = fastload.DataLoader(
        Numbers(), 7, shuffle=True, num_workers=workers, seed=5, seed_by="sample", shard=True
    )
    again = _rebuilt(_rebuilt(loader))
    assert (again.seed, again.seed_by, again.shard, again.batch_size) == (5, "sample", True, 7)
    _same_epochs(again, loader)
    assert again.stats()["order"] == "fastload"
    state = loader.state_dict()
    again.load_state_dict(state)


def test_a_rebuilt_loader_of_a_global_batch(numbers_path: str) -> None:
    for dataset in (fastload.open(numbers_path), Numbers()):
        loader = fastload.DataLoader(dataset, global_batch_size=10, shuffle=True, seed=5)
        again = _rebuilt(loader)
        assert (again.batch_size, len(again)) == (10, 6)
        assert numbers(again) == numbers(loader)


def test_a_rebuilt_iterable_loader() -> None:
    loader = fastload.DataLoader(Stream(), 3)
    assert [batch.tolist() for batch in _rebuilt(loader)] == [batch.tolist() for batch in loader]


def test_another_sampler_is_followed_after_rebuilding() -> None:
    loader = fastload.DataLoader(Numbers(), 4, shuffle=True)
    sampler: Any = data.DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=False)
    assert numbers(_rebuilt(loader, sampler=sampler))[0] == [1, 3, 5, 7]


def test_loaders_pickle() -> None:
    loader = fastload.DataLoader(Numbers(), 4, shuffle=True, seed=5, seed_by="sample")
    first = numbers(loader)
    again = pickle.loads(pickle.dumps(loader))
    again.set_epoch(0)
    assert numbers(again) == first


def test_seed_by_and_sharding_are_checked() -> None:
    with pytest.raises(UsageError, match="unknown seed_by 'index'"):
        fastload.DataLoader(Numbers(), 4, seed_by="index")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no position to be seeded by"):
        fastload.DataLoader(Plain(), 4, seed_by="sample")
    with pytest.raises(UsageError, match="iterable dataset says itself what comes"):
        fastload.DataLoader(Plain(), 4, shard=True)
    loader = fastload.DataLoader(Numbers(), 4, sampler=[1, 2], shard=True)
    with pytest.raises(UsageError, match="it is not shared out"):
        len(loader)


def test_what_torchs_machinery_does_not_do_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="on_error does nothing"):
        fastload.DataLoader(Numbers(), 4, on_error="skip")
    with pytest.warns(UserWarning, match="buffer_bytes does nothing"):
        fastload.DataLoader(Numbers(), 4, buffer_bytes="1MB")


def test_torchs_global_generator_moves_as_with_torchs_loader() -> None:
    states = []
    for kind in (data.DataLoader, fastload.DataLoader):
        torch.manual_seed(3)
        list(kind(Numbers(), 4, sampler=data.RandomSampler(Numbers())))  # type: ignore[arg-type]
        states.append(torch.rand(1))
    assert states[0] == states[1]
