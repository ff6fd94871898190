"""Measure fastload and other loaders on the same work.

Usage: python -m benchmarks.run [SCENARIO ...] [options]

Every loader runs in a process of its own, one after another; a round is each of them once, rounds rotate
their order, and figures are medians over rounds. Results go to RESULTS/SCENARIO.json with the machine
described. Without --peers-python only fastload and torch (Pillow decoding) run, in this interpreter.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import host
from benchmarks.make_images import make_images
from benchmarks.processes import Failure, run_job
from benchmarks.scenarios import SCENARIOS, Scenario, Setting, is_ours

HERE = Path(__file__).resolve().parent
ORDERS = ("full", "sequential", "window", "window-large")
WITHOUT_PEERS = (
    "numpy",
    "records",
    "shards",
    "torch",
    "torch-getitems",
    "torch-pillow",
    "torch-pillow+1",
    "torch-pillow-forkserver",
    "torch-unordered",
    *ORDERS,
)
"""Loaders that need no other packages, beside fastload's own."""
LARGE_SCALE = 4.0


def _say(text: str) -> None:
    print(text, flush=True)


def _prepare(python: str, scenario: Scenario, loaders: Sequence[str], setting: Setting) -> dict[str, str]:
    """Let each loader make its own form of the data. Returns what went wrong, by loader."""
    failures = {}
    for loader in loaders:
        try:
            run_job(
                python, scenario.module, [loader, *scenario.arguments(setting), "--prepare"], timeout=3600.0
            )
        except Failure as failure:
            failures[loader] = str(failure)
            _say(f"  {loader:16s} cannot be prepared: {failure}")
    return failures


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the median of each metric by loader."""
    by_loader: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        by_loader.setdefault(run["loader"], []).append(run["metrics"])
    return {
        loader: {name: statistics.median(metrics[name] for metrics in found) for name in found[0]}
        for loader, found in by_loader.items()
    }


def measure(name: str, python: str, loaders: Sequence[str], setting: Setting, rounds: int) -> dict[str, Any]:
    """Run one scenario and return its results as they are written to JSON."""
    scenario = SCENARIOS[name]
    _say(f"{name}: {scenario.title}")
    failures = _prepare(python, scenario, loaders, setting)
    runs: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    settings: dict[str, str] = {}
    for number in range(rounds):
        turn = number % len(loaders)
        for loader in (*loaders[turn:], *loaders[:turn]):
            if loader in failures:
                continue
            try:
                result = run_job(
                    python,
                    scenario.module,
                    [loader, *scenario.arguments(setting)],
                    watch_memory=scenario.watch_memory,
                )
            except Failure as failure:
                failures[loader] = str(failure)
                _say(f"  {loader:16s} failed: {failure}")
                continue
            versions.update(result.pop("versions"))
            if said := result.pop("settings", ""):
                settings[loader] = said
            metrics = scenario.metrics(result)
            runs.append({"round": number, "loader": loader, "metrics": metrics, "result": result})
            shown = "  ".join(f"{key} {value:,.4g}" for key, value in metrics.items())
            _say(f"  {loader:16s} round {number + 1}: {shown}")
    return {
        "scenario": name,
        "title": scenario.title,
        "workers": setting.workers,
        "rounds": rounds,
        "page_cache": "warm",
        "settings": settings,
        "medians": _medians(runs),
        "failures": failures,
        "versions": versions,
        "runs": runs,
    }


def _loaders(scenario: Scenario, arguments: argparse.Namespace) -> list[str]:
    """Return the loaders of a scenario that this run is to measure."""
    known = (*scenario.loaders, *scenario.more)
    if arguments.loaders:
        return [loader for loader in arguments.loaders.split(",") if loader in known]
    chosen = known if arguments.all else scenario.loaders
    return [
        loader for loader in chosen if arguments.peers_python or loader in WITHOUT_PEERS or is_ours(loader)
    ]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure fastload and other loaders on the same work.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all")
    parser.add_argument("--peers-python", help="interpreter that has the other loaders; all jobs run in it")
    parser.add_argument("--loaders", help="only these, with commas between")
    parser.add_argument("--all", action="store_true", help="the slower loaders as well")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--images", type=Path, help="folder of class folders of JPEGs; made where missing")
    parser.add_argument("--large", type=Path, help="the same of large JPEGs")
    parser.add_argument("--image-count", type=int, default=10_000, help="how many images to make")
    parser.add_argument("--large-count", type=int, default=512, help="how many large images to make")
    parser.add_argument("--scratch", type=Path, default=HERE.parent / "build" / "bench")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    for name in arguments.scenarios:
        if name not in SCENARIOS:
            parser.error(f"no scenario {name!r}: choose from {', '.join(SCENARIOS)}")
    return arguments


def _setting(arguments: argparse.Namespace, needed: set[str]) -> Setting:
    """Return where the data are, after the photographs that are needed and missing were made."""
    images = arguments.images or arguments.scratch / f"photographs-{arguments.image_count}"
    large = arguments.large or arguments.scratch / f"photographs-large-{arguments.large_count}"
    for name, folder, count, scale in (
        ("images", images, arguments.image_count, 1.0),
        ("large", large, arguments.large_count, LARGE_SCALE),
    ):
        if name in needed and not folder.exists():
            _say(f"making {count:,} photographs in {folder}")
            make_images(folder, count, scale)
    return Setting(images.resolve(), large.resolve(), arguments.scratch.resolve(), arguments.workers)


def main() -> None:
    arguments = _parse()
    names = arguments.scenarios or list(SCENARIOS)
    setting = _setting(arguments, {SCENARIOS[name].photographs for name in names})
    python = arguments.peers_python or sys.executable
    arguments.results.mkdir(parents=True, exist_ok=True)
    about = {
        "time": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "revision": host.revision(),
        "host": host.describe(),
    }
    for name in names:
        loaders = _loaders(SCENARIOS[name], arguments)
        if not loaders:
            continue
        results = measure(name, python, loaders, setting, arguments.rounds)
        target = arguments.results / f"{name}.json"
        target.write_text(json.dumps({**about, **results}, indent=1) + "\n")
        _say(f"  written to {target}")


if __name__ == "__main__":
    main()
