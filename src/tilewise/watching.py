"""What people see while a job runs: a bar or lines of progress, and log messages above them."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from tilewise.texts import format_rate, format_seconds

if TYPE_CHECKING:
    from tilewise.outcome import Event

#: Seconds between two lines of progress where there is no terminal.
INTERVAL = 10.0


class Progress:
    """Watches a run and says nothing; a context manager, so that a run that fails leaves the terminal in order."""

    def __call__(self, event: Event) -> None:
        """Take note of an event."""

    def close(self) -> None:
        """Leave the terminal in order."""

    def __enter__(self) -> Progress:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()


def progress(*, quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """What to hand to `run(progress=...)`: a bar on a terminal, else a line at the start, every 10 s and at the end.

    Parameters
    ----------
    quiet
        Say nothing.
    stream
        Where to; standard error unless given. A run never fails because nobody listens there.

    >>> from tilewise.outcome import Event
    >>> watch = progress(stream=sys.stdout)
    >>> for event in (Event(0, 8, 0.0, 0), Event(2, 8, 1.0, 1 << 30), Event(8, 8, 4.0, 4 << 30)):
    ...     watch(event)
    tilewise: 0 of 8 tiles
    tilewise: 8 of 8 tiles (100 %) in 4.0 s, 1.00 GiB/s
    """
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:
        return Progress()
    return _Bar(stream) if stream.isatty() else _Lines(stream)


class _Lines(Progress):
    """A line now and then, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = -math.inf

    def __call__(self, event: Event) -> None:
        if event.done + event.failed == event.total or event.seconds - self._last >= INTERVAL:
            self._last = event.seconds
            with suppress(OSError, ValueError):
                self._stream.write(f"tilewise: {_line(event)}\n")
                self._stream.flush()


def _line(event: Event) -> str:
    text = f"{event.done:,} of {event.total:,} tiles"
    text += f", {event.failed:,} failed" if event.failed else ""
    now = event.done - event.resumed
    if not now:
        return text
    text += f" ({100 * event.done // event.total} %) in {format_seconds(event.seconds)}"
    text += f", {format_rate(event.nbytes, event.seconds)}"
    left = event.seconds * (event.total - event.done - event.failed) / now
    return f"{text}, about {format_seconds(left)} left" if left else text


class _Bar(Progress):
    """A bar of tiles with bytes a second and the time that is left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None

    def __call__(self, event: Event) -> None:
        from tqdm import tqdm

        with suppress(OSError, ValueError):
            if self._bar is None:
                form = "{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} tiles [{elapsed}<{remaining}{postfix}]"
                self._bar = tqdm(
                    total=event.total, initial=event.done, file=self._stream, dynamic_ncols=True, bar_format=form
                )
            self._bar.set_postfix_str(format_rate(event.nbytes, event.seconds), refresh=False)
            self._bar.update(event.done - self._bar.n)
            if event.done + event.failed == event.total:
                self.close()

    def close(self) -> None:
        if self._bar is not None:
            with suppress(OSError, ValueError):
                self._bar.close()


class _Handler(logging.StreamHandler[TextIO]):
    """Log messages as lines of their own, above a bar that is being drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        with suppress(OSError, ValueError):
            tqdm.write(self.format(record), file=self.stream)


@contextmanager
def logged(*, quiet: bool = False) -> Iterator[None]:
    """Show tilewise's log messages on standard error meanwhile; only errors where `quiet`."""
    log = logging.getLogger("tilewise")
    handler = _Handler(sys.stderr)
    handler.setFormatter(logging.Formatter("tilewise: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)
