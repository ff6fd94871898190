from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fastload.convert.pool import Report, run_tasks
from fastload.errors import EngineError, SourceError

MODES = [(1, True), (3, True), (3, False)]


def double(number: int, report: Report) -> int:
    time.sleep(0.02 * (number % 3))
    report(number)
    return 2 * number


def fail_on_three(number: int, report: Report) -> int:
    if number == 3:
        raise SourceError("no", path="three", record=3)
    return double(number, report)


def raise_odd(number: int, report: Report) -> int:
    raise LookupError(f"odd {number}")


def die_on_three(number: int, report: Report) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return double(number, report)


def slow_after_zero(number: int, report: Report) -> int:
    if number:
        time.sleep(600)
    raise SourceError("first")


@pytest.mark.parametrize(("workers", "processes"), MODES)
def test_results_are_in_order_and_all_is_reported(workers: int, processes: bool) -> None:
    seen: list[int] = []
    results = run_tasks(double, list(range(10)), workers=workers, processes=processes, report=seen.append)
    assert results == [2 * number for number in range(10)]
    assert sum(seen) == 45


@pytest.mark.parametrize(("workers", "processes"), MODES)
def test_a_failure_undoes_what_was_done(workers: int, processes: bool) -> None:
    undone: list[int] = []
    with pytest.raises(SourceError, match=r"no \(three, record 3\)") as caught:
        run_tasks(fail_on_three, list(range(6)), workers=workers, processes=processes, undo=undone.append)
    assert caught.value.record == 3
    assert {0, 2, 4} & set(undone) or workers > 1
    assert len(undone) == len(set(undone))


@pytest.mark.parametrize("workers", [1, 2])
def test_any_other_error_reaches_the_caller(workers: int) -> None:
    with pytest.raises((LookupError, EngineError), match="odd"):
        run_tasks(raise_odd, [1, 3], workers=workers)


def test_a_killed_worker_is_told() -> None:
    with pytest.raises(EngineError, match="killed by signal 9"):
        run_tasks(die_on_three, list(range(6)), workers=2)


def test_a_failure_does_not_wait_for_the_others() -> None:
    started = time.monotonic()
    with pytest.raises(SourceError, match="first"):
        run_tasks(slow_after_zero, [0, 1], workers=2)
    assert time.monotonic() - started < 60


def test_no_tasks() -> None:
    assert run_tasks(double, [], workers=4) == []


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signal masks")
def test_workers_inherit_that_ctrl_c_is_held_back() -> None:
    # In a process of its own, where nothing has started multiprocessing's resource tracker yet.
    script = (
        "import multiprocessing, signal\n"
        "from fastload.convert.pool import _interrupts_held_back\n"
        "if __name__ == '__main__':\n"
        "    with _interrupts_held_back():\n"
        "        process = multiprocessing.get_context('spawn').Process(target=print)\n"
        "        process.start()\n"
        "        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        "    process.join()\n"
        "    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
