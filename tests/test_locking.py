"""The lock: one run at a time, dead owners taken over, exactly one of several takers, orphans turned away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from tilewise import claims, locking
from tilewise.claims import HEARTBEAT, LOCK, Claim
from tilewise.errors import LockedError, StoreAccessError
from tilewise.folders import Folder
from tilewise.locking import Lease, Watch, hold
from tilewise.owners import Owner, this_process

DEAD = replace(this_process(), started="1")
ELSEWHERE = replace(this_process(), boot="another", host="node7")


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "o.tilewise") if request.param == "local" else f"memory://{uuid4().hex}/o.tilewise")


def left_by(owner: Owner, folder: Folder, run: str = "old", name: str = LOCK) -> Claim:
    """The claim of a run whose process is that one."""
    claim = Claim(run, uuid4().hex, "o.zarr", "2026-01-01T00:00:00Z", owner)
    folder.write_text(name, claim.to_json())
    return claim


def never(seconds: float) -> None:
    raise AssertionError("nothing is to be waited for")


def test_a_lock_names_its_run_and_goes_with_it(folder: Folder) -> None:
    with hold(folder, "a", output="o.zarr", sleep=never) as lock:
        lock.check()
        assert lock.lease == Lease(folder.place, "a")
        claim = locking.read_claim(folder)
        assert claim is not None
        assert (claim.run, claim.output, claim.owner, claim.is_alive) == ("a", "o.zarr", this_process(), True)
    assert not folder.exists()


def test_what_else_is_in_the_sidecar_stays(folder: Folder) -> None:
    with hold(folder, "a"):
        folder.write_text("job.json", "{}")
    assert folder.names() == ["job.json"]


def test_a_second_run_is_refused_by_name(folder: Folder) -> None:
    with hold(folder, "a", output="o.zarr") as lock:
        with (
            pytest.raises(LockedError, match=r"at work on o\.zarr; got: run a, process .*--force-unlock"),
            hold(folder, "b"),
        ):
            pass
        lock.check()
        assert set(folder.names()) == {LOCK, HEARTBEAT}


def test_a_dead_owner_is_taken_over_at_once(folder: Folder) -> None:
    left_by(DEAD, folder)
    with hold(folder, "b", sleep=never) as lock:
        lock.check()
        assert set(folder.names()) == {LOCK, HEARTBEAT}
    assert not folder.exists()


def test_an_owner_elsewhere_is_taken_over_after_a_silent_minute(folder: Folder) -> None:
    left_by(ELSEWHERE, folder)
    folder.write_text(HEARTBEAT, "1")
    waited: list[float] = []
    with hold(folder, "b", sleep=waited.append) as lock:
        lock.check()
    assert sum(waited) >= 60


def test_an_owner_elsewhere_that_beats_is_left_alone(folder: Folder) -> None:
    left_by(ELSEWHERE, folder)
    folder.write_text(HEARTBEAT, "1")
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            folder.write_text(HEARTBEAT, "2")

    with pytest.raises(LockedError, match="on node7"), hold(folder, "b", sleep=sleep):
        pass
    assert len(waited) == 3
    assert set(folder.names()) == {LOCK, HEARTBEAT}


def test_an_owner_elsewhere_that_ends_meanwhile_makes_room(folder: Folder) -> None:
    left_by(ELSEWHERE, folder)
    folder.write_text(HEARTBEAT, "1")

    def sleep(seconds: float) -> None:
        folder.remove_text(HEARTBEAT)
        folder.remove_text(LOCK)

    with hold(folder, "b", sleep=sleep) as lock:
        lock.check()


def test_force_takes_a_living_run_over_and_that_one_writes_no_more(folder: Folder) -> None:
    with hold(folder, "a") as first:
        with hold(folder, "b", force=True, sleep=never) as second:
            with pytest.raises(LockedError, match="got: run b, process .*; expected: run a"):
                first.check()
            assert first.lost
            second.check()
            folder.write_text("job.json", "{}")
        with pytest.raises(LockedError, match="got: no lock"):
            first.lease.check()
    assert folder.names() == ["job.json"]


def test_a_run_that_was_taken_over_does_not_give_back_what_is_not_its(folder: Folder) -> None:
    with ExitStack() as inner:
        with hold(folder, "a"):
            lock = inner.enter_context(hold(folder, "b", force=True))
        lock.check()
        assert set(folder.names()) == {LOCK, HEARTBEAT}


@pytest.mark.parametrize("text", ["", "{", '{"run": "a"}', "[]"])
def test_a_damaged_lock_is_refused_by_name_and_forced(folder: Folder, text: str) -> None:
    folder.write_text(LOCK, text)
    with pytest.raises(LockedError, match="is damaged.*--force-unlock"), hold(folder, "b"):
        pass
    with pytest.raises(StoreAccessError, match="is damaged"):
        Lease(folder.place, "b").check()
    with hold(folder, "b", force=True) as lock:
        lock.check()


def test_a_watch_sees_a_lock_that_another_has_taken_or_given_back(folder: Folder) -> None:
    with hold(folder, "a") as lock:
        watch = Watch(lock.lease)
        watch.check()
        watch.check()
        left_by(ELSEWHERE, folder, "b")
        with pytest.raises(LockedError, match="no longer this run's"):
            watch.check()
    folder.remove()
    with pytest.raises(LockedError, match="no lock"):
        watch.check()


def test_the_heartbeat_changes_and_sees_that_the_lock_has_gone(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locking, "BEAT", 0.01)
    with hold(folder, "a") as lock:
        first = folder.read_text(HEARTBEAT)
        wait_until(lambda: folder.read_text(HEARTBEAT) != first)
        left_by(ELSEWHERE, folder, "b")
        wait_until(lambda: lock.lost)
        beat = folder.read_text(HEARTBEAT)
    assert folder.read_text(HEARTBEAT) == beat
    assert "no longer this run's" in caplog.text


def wait_until(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


def takers(folder: Folder, count: int) -> list[str]:
    """Names of those of `count` runs, all at once, that hold the lock, while all of them try."""
    ready, tried, won = threading.Barrier(count, timeout=60), threading.Barrier(count, timeout=60), []

    def take(run: str) -> None:
        ready.wait()
        try:
            with hold(folder, run) as lock:
                lock.check()
                won.append(run)
                tried.wait()
                lock.check()
        except LockedError:
            tried.wait()

    threads = [threading.Thread(target=take, args=(f"r{i}",)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


@pytest.mark.parametrize("dead", [True, False])
def test_of_several_takers_exactly_one_wins(folder: Folder, dead: bool) -> None:
    for _ in range(20 if folder.path else 3):  # each reads and writes many small files
        if dead:
            left_by(DEAD, folder)
        assert len(takers(folder, 6)) == 1
        assert not folder.exists()


def test_a_taker_that_died_half_way_keeps_nobody_out(folder: Folder) -> None:
    for _ in range(5 if folder.path else 1):
        # One died after it had won the right to replace; the next after it had replaced, with its marker left.
        old = left_by(DEAD, folder)
        half = left_by(DEAD, folder, "half", claims._marker(old))
        left_by(DEAD, folder, "quarter", claims._marker(half))
        assert len(takers(folder, 4)) == 1
    held = left_by(DEAD, folder)
    folder.write_text(claims._marker(left_by(DEAD, folder, "older", "lock-x.json")), held.to_json())
    with hold(folder, "b") as lock:
        lock.check()
        assert set(folder.names()) == {LOCK, HEARTBEAT}


def test_an_owner_that_died_while_it_gave_the_lock_back_keeps_nobody_out(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before anything has gone: only the marker is there, made by the very owner."""
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "remove_text", lambda self, name: None)
        with hold(folder, "a"):
            pass
    assert len(folder.names()) == 3
    with hold(folder, "b", sleep=never) as lock:
        lock.check()
        assert set(folder.names()) == {LOCK, HEARTBEAT}


def test_a_sidecar_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(StoreAccessError, match="cannot be written.*set sidecar"),
        hold(Folder(f"{tmp_path}/file/s"), "a"),
    ):
        pass
    with pytest.raises(StoreAccessError, match="cannot be written"), hold(Folder("/proc/tilewise"), "a"):
        pass
