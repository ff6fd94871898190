"""Work in a forked child, for tests of what is left of an iterator there."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable


def in_child(work: Callable[[], None]) -> None:
    """Do ``work`` in a forked child. Fail if it raises, which is printed, or does not end in 30 seconds."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0) == (child, 0)
