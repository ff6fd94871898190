"""What commands print: one result on stdout, as a text or as JSON; everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.table import Table

REFRESH_SECONDS = 0.1

Command = TypeVar("Command", bound=Callable[..., Any])


def common_options(command: Command) -> Command:
    """Give a command ``--json`` (its parameter ``as_json``) and ``--debug``."""
    command = click.option(
        "--debug", is_flag=True, expose_value=False, help="Print the traceback of an error."
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print the result, or the error, as JSON.")(
        command
    )


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object to stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def warn(text: str) -> None:
    """Print a line to stderr."""
    click.echo(text, err=True)


def print_table(table: Table) -> None:
    """Print a rich table to stdout; as wide as its content where stdout is no terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 200).print(table)


def new_table(*headings: str, right: tuple[int, ...] = ()) -> Table:
    """Return an empty table without a frame; columns whose number is in ``right`` are set flush right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number in right else "left", no_wrap=number in right)
    return table


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "record"), plural(1200, "class")
    ('1 record', '1,200 classes')
    """
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def size_text(size: float) -> str:
    """Return bytes as people read them.

    >>> size_text(999), size_text(256_000_000), size_text(1.5e12)
    ('999 B', '256.0 MB', '1.5 TB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 1000 or unit == "PB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar with rate and time left on stderr where that is a terminal, else nothing.

    Yields a function to call with (more done, total or None).
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None, rate="")

        pending, shown = 0, 0.0

        def update(done: int, total: int | None) -> None:
            nonlocal pending, shown
            pending += done
            now = time.monotonic()
            if now - shown < REFRESH_SECONDS:
                return  # Drawing costs more than most records do.
            speed = progress.tasks[0].speed
            rate = f"{speed:,.0f}/s" if speed else ""
            progress.update(task, advance=pending, total=total, rate=rate)
            pending, shown = 0, now

        yield update
