from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tilewise import tries
from tilewise.tries import Patience, Pauses, Tries
from tilewise.turns import Turns


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PASSING", "UNREADABLE"):
        monkeypatch.setattr(tries, name, Pauses(0.001, 1.0, 0.001))


class Fails:
    """Fails so many times, and counts its calls."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times, self.error, self.calls = times, error, 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return self.calls


def patience(retries: int = 3, over: Callable[[], bool] = bool) -> Patience:
    return Patience(retries, over)


def test_what_may_pass_is_tried_again_and_counted() -> None:
    again = Tries(patience())
    assert again(Fails(2, TimeoutError()), "read") == 3
    assert again(Fails(1, ValueError("torn")), "read") == 2
    assert (again.count, again.trouble) == (4, None)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_no_more_often_than_it_was_allowed(retries: int) -> None:
    again, call = Tries(patience(retries)), Fails(9, TimeoutError("still"))
    with pytest.raises(TimeoutError, match="still"):
        again(call, "write")
    assert call.calls == again.count == retries + 1
    assert again.trouble is tries.Trouble.PASSING


def test_what_lasts_is_not_tried_again() -> None:
    again, call = Tries(patience()), Fails(9, PermissionError())
    with pytest.raises(PermissionError):
        again(call, "write")
    assert call.calls == 1


def test_nobody_waits_for_a_run_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "PASSING", Pauses(3600, 1.0, 3600))
    asked: list[int] = []
    call = Fails(9, TimeoutError())
    with pytest.raises(TimeoutError):
        Tries(patience(over=lambda: bool(asked.append(1) or len(asked) > 1)))(call, "read")
    assert call.calls == 1


def test_patience_ends_and_comes_back_with_the_first_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "PATIENCE", 0.0005)
    ours = patience()
    first, later = Fails(9, TimeoutError()), Fails(9, TimeoutError())
    for call in (first, later):
        with pytest.raises(TimeoutError):
            Tries(ours)(call, "read")
    assert (first.calls, later.calls) == (2, 1)
    Tries(ours)(lambda: 1, "read")
    assert Tries(ours)(Fails(1, TimeoutError()), "read") == 2


def test_pauses_grow_and_are_never_alike() -> None:
    pauses = Pauses(1.0, 8.0, 60.0)
    for tried, middle in ((1, 1), (2, 8), (3, 60), (10**6, 60)):
        found = {pauses.seconds(tried) for _ in range(20)}
        assert len(found) > 1
        assert all(0.75 * middle <= seconds <= 1.25 * middle for seconds in found)


def test_who_is_alone_waits_for_the_others_and_others_wait() -> None:
    turns, events, inside = Turns(), [], threading.Event()
    go = threading.Event()

    def beside() -> None:
        with turns.together():
            inside.set()
            go.wait(60)
            events.append("beside")

    def alone() -> None:
        with turns.alone():
            events.append("alone")

    def later() -> None:
        with turns.together():
            events.append("later")

    threads = [threading.Thread(target=beside), threading.Thread(target=alone)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    while not turns._waiting:
        time.sleep(0.001)
    threads.append(threading.Thread(target=later))
    threads[2].start()
    go.set()
    for thread in threads:
        thread.join(60)
    assert events == ["beside", "alone", "later"]
