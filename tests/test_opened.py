from __future__ import annotations

import io
import threading

import pytest

from tilewise.opened import forget, opened


def test_no_run_waits_for_what_another_opens() -> None:
    goes_on = threading.Event()

    def slow() -> io.StringIO:
        assert goes_on.wait(60)
        return io.StringIO()

    thread = threading.Thread(target=opened, args=("slow", slow))
    thread.start()
    try:
        assert opened("fast", io.StringIO) is opened("fast", io.StringIO)
    finally:
        goes_on.set()
        thread.join()
        forget("fast")
        forget("slow")


def test_what_could_not_be_opened_is_tried_again() -> None:
    def refused() -> io.StringIO:
        raise OSError("not now")

    with pytest.raises(OSError, match="not now"):
        opened("run", refused)
    found = opened("run", io.StringIO)
    forget("run")
    forget("run")
    assert found.closed
