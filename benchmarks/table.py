"""Write README's table of figures and docs/figures.svg from benchmarks/results.

Usage: python -m benchmarks.table [--check]; with --check it only says whether README is up to date.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.plot import render_plot
from benchmarks.scenarios import SCENARIOS, is_ours

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
PLOT = HERE.parent / "docs" / "figures.svg"
BEGIN, END = "<!-- figures: written by benchmarks/table.py -->\n", "<!-- end of figures -->"

COLUMNS = {
    "torch (images: Pillow)": ("torch-pillow", "torch"),
    "torch + torchvision.io": ("torch-tvio",),
    "FFCV": ("ffcv", "ffcv-raw"),
    "DALI": ("dali",),
    "TurboLoader": ("turboloader", "turboloader-raw"),
}
"""Columns of other loaders, and the loaders that fill them."""
BASELINES = ("numpy",)
"""Not loaders: not compared with."""

OURS = {"fastload": ("fastload", "fastload-raw"), "fastload, decode=fast": ("fastload-fast",)}
"""fastload's own columns."""

THROUGHPUT = (
    "image-uint8",
    "image-float32",
    "large-uint8",
    "evaluation-uint8",
    "raw-uint8",
    "raw-float32",
    "records-3072",
    "records-114660",
)
SCALING = "scaling-uint8"
MEMORY = ("memory-uint8", "memory-float32")
OPENING = ("opening-records", "opening-shards")
PAIRS = "pillow-pairs"
"""A result of benchmarks/pairs.py."""

PYTHON_COLUMNS = {
    "torch": ("torch", "torch-pillow"),
    "fastload, processes": ("fastload", "fastload-processes"),
    "fastload, threads": ("fastload-threads",),
}
PYTHON = (
    ("python-records-3072", "samples_per_second", "3,072 B records, batch 512, samples/s", ",.0f", 1),
    ("python-records-114660", "samples_per_second", "114,660 B records, batch 400, samples/s", ",.0f", 1),
    (PAIRS, "samples_per_second", "JPEG by Pillow, batch 128, samples/s", ",.0f", 1),
    ("pillow-memory", "peak_bytes", "the same: memory above torch's import, MB", ",.0f", 1e-6),
    ("pillow-memory", "resident_bytes", "the same: resident memory of all processes, MB", ",.0f", 1e-6),
    ("stall", "stall_share", "stall: share of the time in next(), %", ".1f", 100),
    ("stall", "wait_p99_seconds", "stall: 99th percentile of next(), ms", ".1f", 1e3),
)
"""Rows of the table of Python datasets: a result, which of its figures, and how it is written."""


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results that there are, by scenario."""
    files = {name: folder / f"{name}.json" for name in (*SCENARIOS, PAIRS)}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first being the head, without the columns that nothing was measured for."""
    filled = [number for number in range(len(rows[0])) if any(row[number] != "–" for row in rows[1:])]
    head, *rest = [[row[number] for number in filled] for row in rows]
    return "".join(map(_line, [head, ["---"] + ["---:"] * (len(head) - 1), *rest]))


def _cells(medians: dict[str, dict[str, float]], metric: str, form: str, scale: float) -> list[str]:
    """Return a row's cells, one for each of OURS and COLUMNS."""
    cells = []
    for names in (*OURS.values(), *COLUMNS.values()):
        found = [medians[name][metric] * scale for name in names if name in medians]
        cells.append(format(found[0], form) if found else "–")
    return cells


def _ratios(medians: dict[str, dict[str, float]]) -> str:
    """Return how OURS compare with the best of the others in the same sitting."""
    rates = {loader: metrics["samples_per_second"] for loader, metrics in medians.items()}
    others = [rate for loader, rate in rates.items() if not is_ours(loader) and loader not in BASELINES]
    ours = [rates[name] for names in OURS.values() for name in names if name in rates]
    return ", ".join(f"{rate / max(others):.2f}" for rate in ours) if others and ours else "–"


def throughput_table(results: dict[str, dict[str, Any]]) -> str:
    """Return samples/s, and how fastload compares with the best of the others in the same sitting."""
    rows = [["samples/s", *OURS, *COLUMNS, "fastload / best other"]]
    for name in THROUGHPUT:
        if name in results:
            medians = results[name]["medians"]
            cells = _cells(medians, "samples_per_second", ",.0f", 1)
            rows.append([results[name]["title"], *cells, _ratios(medians)])
    return _table(rows)


def scaling_line(results: dict[str, dict[str, Any]]) -> str:
    """Return how much faster each form is than with one worker."""
    if SCALING not in results:
        return ""
    medians = results[SCALING]["medians"]
    said = [
        f"{medians[name]['samples_per_second'] / medians[f'{name}-1']['samples_per_second']:.2f} ({name})"
        for name in medians
        if f"{name}-1" in medians
    ]
    return f"{results[SCALING]['workers']} workers load so many times as fast as one: {', '.join(said)}.\n"


def memory_table(results: dict[str, dict[str, Any]]) -> str:
    """Return peak memory and time to the first batch."""
    rows = [["", *OURS, *COLUMNS]]
    for name in MEMORY:
        if name in results:
            cells = _cells(results[name]["medians"], "peak_bytes", ",.0f", 1e-6)
            rows.append([f"memory above torch's import, MB, {results[name]['title']}", *cells])
    for name in THROUGHPUT[:2]:
        if name in results:
            cells = _cells(results[name]["medians"], "first_batch_seconds", ".2f", 1)
            rows.append([f"first batch, s, {results[name]['title']}", *cells])
    return _table(rows)


def python_table(results: dict[str, dict[str, Any]]) -> str:
    """Return what became of Python datasets in worker processes and threads."""
    rows = [["a Python dataset, 2 workers", *PYTHON_COLUMNS]]
    for name, metric, title, form, scale in PYTHON:
        if name in results:
            medians = results[name]["medians"]
            found = [
                next((medians[loader][metric] for loader in loaders if loader in medians), None)
                for loaders in PYTHON_COLUMNS.values()
            ]
            rows.append([title, *("–" if value is None else format(value * scale, form) for value in found)])
    return _table(rows) if len(rows) > 1 else ""


def opening_line(results: dict[str, dict[str, Any]]) -> str:
    """Return a sentence for each opening time."""
    said = []
    for name in OPENING:
        if name in results:
            [metrics] = results[name]["medians"].values()
            said.append(f"to {results[name]['title']} takes {metrics['first_record_seconds'] * 1e3:.1f} ms")
    return f"In a new process, {', '.join(said)}.\n" if said else ""


def about_line(results: dict[str, dict[str, Any]]) -> str:
    """Return the machine, the software and the command."""
    one = next(iter(results.values()))
    host, versions = one["host"], one["versions"]
    rounds = min(found["rounds"] for found in results.values() if "rounds" in found)
    dates = sorted({found["time"][:10] for found in results.values()})
    return (
        f"{host['cpu']}, {host['cores']} cores, {host['memory_bytes'] / 2**30:.0f} GiB, {host['kernel']}; "
        f"Python {versions['python']}, torch {versions['torch']}; {one['workers']} workers; data in the page "
        f'cache; `verify="first"`; medians of {rounds} rounds in one sitting, '
        f"{' to '.join([dates[0], dates[-1]][: len(dates)])}. Made by `make bench`, the other loaders as "
        "[benchmarks](benchmarks/README.md) describes.\n"
    )


def render(results: dict[str, dict[str, Any]]) -> str:
    """Return the whole section between README's markers."""
    parts = [
        throughput_table(results),
        scaling_line(results),
        memory_table(results),
        python_table(results),
        opening_line(results),
        f"![samples a second of each loader]({PLOT.relative_to(README.parent).as_posix()})\n",
        about_line(results),
    ]
    return "\n".join(part for part in parts if part)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write README's table of figures from benchmarks/results.")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    results = load(HERE / "results")
    if not results:
        raise SystemExit("benchmarks/results is empty: run make bench first")
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = f"{before}{BEGIN}{render(results)}{END}{after}"
    if arguments.check and made != text:
        raise SystemExit(
            "README's figures are not those of benchmarks/results: run python -m benchmarks.table"
        )
    README.write_text(made)
    PLOT.write_text(render_plot(results))


if __name__ == "__main__":
    main()
