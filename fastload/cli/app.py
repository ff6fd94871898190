"""The ``fastload`` command: its subcommands, its exit codes, and how it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

import click

from fastload.cli.bench import bench
from fastload.cli.convert import convert
from fastload.cli.export import export
from fastload.cli.look import head, info
from fastload.cli.maintain import gc, merge, repair, verify
from fastload.cli.output import print_json, warn
from fastload.cli.plan import plan
from fastload.errors import FastloadError, UsageError

FAILED, USAGE = 1, 2


class Terminated(BaseException):
    """The process was asked to end by a signal, as KeyboardInterrupt is by Ctrl-C."""


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from fastload import __version__

        click.echo(f"fastload {__version__}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Say the version.",
)
def app() -> None:
    """Training data, converted once and loaded fast.

    \b
    fastload convert photos/ photos.fl     make a dataset
    fastload info photos.fl                see what is in it
    fastload bench photos.fl               measure how fast it loads here
    """


for command in (convert, info, head, verify, repair, gc, merge, export, bench, plan):
    app.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 128 + n ended by signal n."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = set(given[: given.index("--")] if "--" in given else given)
    sys.exit(_run(given, as_json="--json" in options, debug="--debug" in options))


def _run(arguments: list[str], *, as_json: bool, debug: bool) -> int:
    try:
        with _terminable():
            status = app.main(arguments, prog_name="fastload", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        text = error.format_message()
        if not as_json and error.ctx is not None:
            warn(error.ctx.get_usage())
        return _fail(error, text, USAGE, as_json=as_json, debug=debug)
    except FastloadError as error:
        return _fail(
            error, str(error), USAGE if type(error) is UsageError else FAILED, as_json=as_json, debug=debug
        )
    except (KeyboardInterrupt, click.Abort):
        warn("fastload: interrupted")
        return 128 + signal.SIGINT
    except Terminated:
        warn("fastload: ended by a signal")
        return 128 + signal.SIGTERM
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        text = f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
        return _fail(error, text, FAILED, as_json=as_json, debug=debug)
    except Exception as error:
        text = f"an error that fastload did not expect, {type(error).__name__}: {error}"
        hint = "" if debug else "; run it again with --debug for the traceback"
        return _fail(error, text + hint, FAILED, as_json=as_json, debug=debug)
    return status if isinstance(status, int) else 0


def _fail(error: BaseException, text: str, status: int, *, as_json: bool, debug: bool) -> int:
    if debug:
        traceback.print_exception(type(error), error, error.__traceback__)
    if as_json:
        places = {
            name: getattr(error, name, None)
            for name in ("path", "shard", "record", "field", "offset", "hint")
        }
        known = {name: value for name, value in places.items() if isinstance(value, (str, int))}
        print_json({"error": {"type": type(error).__name__, "message": text, **known}})
    else:
        warn(f"fastload: {text}")
    return status


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that nothing half-made is left behind."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
