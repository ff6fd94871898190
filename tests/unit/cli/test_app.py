from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from fastload.cli import app as app_module
from fastload.cli.app import _run, app
from fastload.cli.convert import storage_options_of
from fastload.cli.look import describe_field, value_text
from fastload.errors import CorruptionError, SourceError, UsageError
from fastload.schema import Image, Label, Ragged, Scalar, Str, Tensor


def call(*arguments: str) -> int:
    return _run(list(arguments), as_json="--json" in arguments, debug="--debug" in arguments)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException]:
    """Return where to put the error that ``fastload fail`` raises."""
    error: dict[str, BaseException] = {}

    @click.command("fail")
    @click.option("--json", is_flag=True, expose_value=False)
    @click.option("--debug", is_flag=True, expose_value=False)
    def fail() -> None:
        raise error["error"]

    monkeypatch.setitem(app.commands, "fail", fail)
    return error


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (SourceError("no good", path="a", record=3), 1, "fastload: no good (a, record 3)"),
        (CorruptionError("bits", shard="s", hint="verify"), 1, "fastload: bits (shard s): verify"),
        (UsageError("cannot"), 2, "fastload: cannot"),
        (PermissionError(13, "Permission denied", "/x"), 1, "fastload: Permission denied (/x)"),
        (
            KeyError("k"),
            1,
            "fastload: an error that fastload did not expect, KeyError: 'k'; run it again with --debug",
        ),
        (KeyboardInterrupt(), 130, "fastload: interrupted"),
        (app_module.Terminated(), 143, "fastload: ended by a signal"),
    ],
)
def test_errors_are_sentences(
    failing: dict[str, BaseException],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    text: str,
) -> None:
    failing["error"] = error
    assert call("fail") == status
    printed = capsys.readouterr()
    assert printed.err.lstrip().startswith(text)
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_errors_as_json_and_with_traceback(
    failing: dict[str, BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing["error"] = SourceError("no good", path="a", record=3)
    assert call("fail", "--json", "--debug") == 1
    printed = capsys.readouterr()
    assert "Traceback" in printed.err
    expected: dict[str, Any] = {
        "error": {"type": "SourceError", "message": "no good (a, record 3)", "path": "a", "record": 3}
    }
    assert json.loads(printed.out) == expected


def test_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("info") == 2
    assert "Missing argument 'DATASET'" in capsys.readouterr().err
    assert call("nonsense") == 2
    assert call("convert", "a", "b", "--jpeg", "segments") == 2
    assert "use one of segment, keep" in capsys.readouterr().err
    assert call("convert", "a", "b", "--overwrite", "--append") == 2
    assert call("info", "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "MissingParameter"


def test_every_command_has_help_json_and_debug(capsys: pytest.CaptureFixture[str]) -> None:
    for name in app.commands:
        assert call(name, "--help") == 0
        text = capsys.readouterr().out
        assert "--json" in text, name
        assert "--debug" in text, name


def test_storage_options() -> None:
    assert storage_options_of(("a=1", "b=x=y")) == {"a": "1", "b": "x=y"}
    with pytest.raises(click.BadParameter):
        storage_options_of(("a",))


def test_descriptions_of_fields() -> None:
    assert describe_field(Tensor("uint8", (3, 4))) == ("tensor of uint8", "3 x 4")
    assert describe_field(Ragged("int8", (None, 2), codec="zstd")) == ("ragged of int8", "any x 2; zstd")
    assert describe_field(Scalar("int8", nullable=True)) == ("int8", "may be null")
    assert describe_field(Label([str(n) for n in range(9)])) == ("label", "9 classes: 0, 1, 2, 3, 4, …")
    assert describe_field(Image(mode="L")) == ("image", "L")
    assert describe_field(Str()) == ("str", "")


def test_values_as_text() -> None:
    assert value_text({"bytes": 1200, "format": "jpg", "width": 2, "height": 3}) == "JPG, 2 x 3, 1.2 kB"
    assert value_text({"bytes": 0, "error": "empty"}) == "0 B: empty"
    assert value_text({"shape": [2, 9], "dtype": "int8", "first": [1, 2, 3]}) == "2 x 9 int8: 1, 2, 3, …"
    assert value_text({"bytes": 5}) == "5 B"
    assert value_text(None) == "None"


def test_contact_sheet_needs_images(
    tmp_path: Path, record_dataset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("head", record_dataset, "--images", str(tmp_path / "x.html")) == 2
    assert "no image field" in capsys.readouterr().err


def test_plan_of_a_dataset(record_dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", record_dataset, "--ranks", "4", "--nodes", "2", "--batch-size", "8")
    assert call(*arguments, "--shuffle-window", "10kB", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["records"] == 100
    assert (found["batches"], found["pads"], found["global_batch_size"]) == (4, 0, 32)
    assert found["rank_samples"] == [25, 25]
    assert found["node_samples"] == [50, 50]
    assert found["window"]["streams"] == 1
    assert call(*arguments, "--no-shuffle", "--drop-last") == 0
    printed = capsys.readouterr().out
    assert "on 2 nodes of 2 ranks, in order, seed 0" in printed
    assert "3 of 32" in printed


def test_plan_of_what_is_only_described(capsys: pytest.CaptureFixture[str]) -> None:
    described = ("plan", "--records", "10_000_000_000", "--shards", "100,000", "--bytes", "1.5PB")
    assert call(*described, "--ranks", "4096", "--ranks-per-node", "8", "--batch-size", "256", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["records"], found["shards_in_all"], found["bytes"]) == (10**10, 10**5, 15 * 10**14)
    assert found["batches"] == 9537
    assert call("plan", "--records", "1000", "--bytes", "512000000", "--no-pad", "--ranks", "3") == 0
    printed = capsys.readouterr().out
    assert "1,000 records, 512.0 MB in 2 shards, on 1 node of 3 ranks, shuffled, seed 0, epoch 0" in printed
    assert "333 to 334" in printed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "name a DATASET, or describe one"),
        (("d.fl", "--records", "5"), "--records describes a dataset"),
        (("--records", "0", "--bytes", "5"), "0 is below 1"),
        (("--records", "many", "--bytes", "5"), "'many' is not a whole number"),
        (("--records", "5", "--bytes", "5", "--ranks", "7", "--nodes", "2"), "2 nodes cannot have"),
        (("--records", "5", "--bytes", "5", "--nodes", "1", "--ranks-per-node", "1"), "exclude each other"),
        (("--records", "5", "--bytes", "5", "--no-shuffle", "--shuffle-window", "1MB"), "exclude each other"),
        (("--records", "5", "--bytes", "5", "--batch-size", "1", "--global-batch-size", "1"), "exclude"),
        (
            ("--records", "5", "--bytes", "5", "--ranks", "4", "--global-batch-size", "3"),
            "of 3 samples for 4",
        ),
        (("--records", "5", "--bytes", "lots"), "'lots' is not a size"),
    ],
)
def test_plan_usage(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", *arguments) == 2
    assert text in capsys.readouterr().err
