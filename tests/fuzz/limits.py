"""An end to what does not end by itself."""

import signal
from contextlib import contextmanager


class TimeOutError(BaseException):
    """Not an Exception: nothing may take it for one of its own."""


@contextmanager
def limited(seconds):
    """Raises TimeOutError after so much time of this process, or 100 times that by the clock."""

    def stop(number, frame):
        raise TimeOutError(f"more than {seconds} s")

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, 1), (signal.SIGALRM, signal.ITIMER_REAL, 100))
    before = [signal.signal(number, stop) for number, _, _ in timers]
    try:
        for _, timer, factor in timers:
            signal.setitimer(timer, seconds * factor)
        yield
    finally:
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        for (number, _, _), handler in zip(timers, before, strict=True):
            signal.signal(number, handler)
