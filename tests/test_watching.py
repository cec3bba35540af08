"""Progress on terminals and elsewhere."""

from __future__ import annotations

import io
import logging
import os
import re
import select
import sys
import termios
from contextlib import suppress

import pytest

from tilewise import watching
from tilewise.outcome import Event


def watch(stream: io.StringIO, *seconds: float) -> list[str]:
    """Lines of a run of which one tile is done at each of these times, and the last of all at the end."""
    total = len(seconds)
    with watching.progress(stream=stream) as on_event:
        on_event(Event(0, total, 0.0, 0))
        for done, time in enumerate(seconds, start=1):
            on_event(Event(done, total, time, done << 20))
    return stream.getvalue().splitlines()


def test_a_line_at_the_start_now_and_then_and_at_the_end():
    assert watch(io.StringIO(), 1, 5, 9.9, 10.0, 19.0, 20.5, 21.0, 22.0) == [
        "tilewise: 0 of 8 tiles",
        "tilewise: 4 of 8 tiles (50 %) in 10.0 s, 410 KiB/s, about 10.0 s left",
        "tilewise: 6 of 8 tiles (75 %) in 20.5 s, 300 KiB/s, about 6.8 s left",
        "tilewise: 8 of 8 tiles (100 %) in 22.0 s, 372 KiB/s",
    ]


def test_nobody_listens():
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    assert watch(Gone(), 1, 2) == []
    closed = io.StringIO()
    on_event = watching.progress(stream=closed)
    closed.close()
    on_event(Event(0, 1, 0.0, 0))


def test_quiet(capfd, monkeypatch):
    with watching.progress(quiet=True) as on_event:
        on_event(Event(1, 1, 1.0, 1))
    monkeypatch.setattr(sys, "stderr", None)
    with watching.progress() as on_event:
        on_event(Event(1, 1, 1.0, 1))
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def terminal():
    """A pseudo-terminal: a stream to write to, and a function that reads at the other end until a line is complete."""
    control, end = os.openpty()
    termios.tcsetwinsize(end, (24, 80))
    stream = os.fdopen(end, "w")

    def seen() -> str:
        stream.flush()
        text = ""
        while not text.endswith("\n") and select.select([control], [], [], 10.0)[0]:
            text += os.read(control, 1 << 16).decode()
        return text

    yield stream, seen
    stream.close()
    os.close(control)


def test_a_bar_on_a_terminal(terminal):
    stream, seen = terminal
    on_event = watching.progress(stream=stream)
    for event in (Event(0, 4, 0.0, 0), Event(1, 4, 1.0, 1 << 20), Event(4, 4, 2.0, 4 << 20)):
        on_event(event)
    text = seen()
    assert re.search(r"^\r +0% \|.*\| 0/4 tiles", text)
    assert re.search(r"100% \|.*\| 4/4 tiles \[.*, 2.00 MiB/s\]\r\n$", text)


def test_a_run_that_fails_leaves_the_terminal_in_order(terminal):
    stream, seen = terminal
    with suppress(ValueError), watching.progress(stream=stream) as on_event:
        on_event(Event(1, 4, 1.0, 1 << 20))
        raise ValueError
    assert seen().endswith("\n")


def test_log_messages_are_lines_on_standard_error(capsys):
    log = logging.getLogger("tilewise")
    before = (log.level, list(log.handlers))
    with watching.logged():
        log.info("measuring")
    with watching.logged(quiet=True):
        log.warning("unseen")
    log.info("unseen")
    assert capsys.readouterr() == ("", "tilewise: measuring\n")
    assert (log.level, log.handlers) == before
