"""Owners: the very process, not one that has its number now; dead ones that nobody has waited for; others elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tilewise.owners import Owner, this_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="start times of processes are known on Linux")


def owner_of(process: subprocess.Popen[bytes]) -> Owner:
    from tilewise.owners import _started

    return replace(this_process(), pid=process.pid, started=_started(process.pid) or "")


def test_a_process_is_alive_until_it_is_killed_and_dead_before_it_is_waited_for() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        owner = owner_of(process)
        assert owner.is_alive
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still in the table
        assert owner.is_alive is False
    finally:
        process.kill()
        process.wait()
    assert owner.is_alive is False


def test_a_later_process_of_the_same_number_is_not_the_owner() -> None:
    assert replace(this_process(), started="1").is_alive is False


@pytest.mark.parametrize("other", [{"boot": "before"}, {"namespace": "pid:[1]"}])
def test_nobody_knows_of_a_process_elsewhere(other: dict[str, str]) -> None:
    assert replace(this_process(), **other).is_alive is None  # type: ignore[arg-type]


def test_a_process_that_is_hidden_lives() -> None:
    """A system may show no start time of another user's process: it is taken for the owner."""
    assert replace(this_process(), started="").is_alive


def test_what_is_no_owner_is_refused() -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        Owner.from_dict({"host": "a", "pid": "x"})
