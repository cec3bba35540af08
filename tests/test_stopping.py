from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tilewise import stopping
from tilewise.stopping import stoppable

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Signals as the handlers that were there before hear them."""
    found: list[int] = []
    before = {s: signal.signal(s, lambda signum, frame: found.append(signum)) for s in SIGNALS}
    yield found
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_waits_for_the_end_and_is_then_delivered(heard: list[int], signum: int) -> None:
    with stoppable() as stop:
        os.kill(os.getpid(), signum)
        assert stop.signum == signum
        assert heard == []
    assert heard == [signum]


def test_a_signal_that_is_sent_twice_at_once_is_one(heard: list[int]) -> None:
    hurried: list[int] = []
    with stoppable(hurried.append):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert (heard, hurried) == ([signal.SIGTERM], [])


def test_a_second_signal_does_not_wait(heard: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "TWICE", -1.0)
    hurried: list[int] = []
    with stoppable(hurried.append):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert hurried == [signal.SIGTERM]
    with stoppable():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGINT, signal.SIGTERM]
    assert heard == [signal.SIGINT, signal.SIGTERM, signal.SIGINT]


def test_what_is_ignored_stays_ignored(heard: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stoppable() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_error_says_more_than_the_signal(heard: list[int]) -> None:
    def failing() -> None:
        with stoppable():
            os.kill(os.getpid(), signal.SIGINT)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert heard == []


def test_other_threads_hear_nothing(heard: list[int]) -> None:
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def look() -> None:
        with stoppable():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]
