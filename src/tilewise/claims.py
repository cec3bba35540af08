"""Who may write an output: the claim in its sidecar, made, taken over and given back by one at a time.

`lock.json` is made exclusively and never written again: while a claim stands there, only who has made the file named
after its token may replace or remove it. So of two takers, or of a taker and an owner that ends, exactly one goes on.
Heartbeats are in a file of their own, so that an owner that wakes up cannot write over the one that took over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NoReturn
from uuid import uuid4

from tilewise.errors import LockedError
from tilewise.folders import Folder
from tilewise.owners import Owner, this_process

log = logging.getLogger("tilewise")

#: The file of a sidecar that names the run which may write.
LOCK = "lock.json"
#: The file in which its owner shows that it lives.
HEARTBEAT = "heartbeat.json"
#: What the name of a probe, which holds the lock as a run does, begins with.
PROBE = "probe-"
#: What files begin with whose maker may replace the claim of the token that follows.
_MARKER = "lock-"
#: Seconds without a heartbeat after which an owner elsewhere counts as dead, and from one look at it to the next.
SILENCE = 60.0
_LOOK = 5.0
#: Tokens of the claims that this process holds.
_HELD: set[str] = set()

Sleep = Callable[[float], object]


def is_lock_file(name: str) -> bool:
    """Whether a file of a sidecar is one of its lock's.

    >>> is_lock_file("lock.json"), is_lock_file("heartbeat.json"), is_lock_file("plan.json")
    (True, True, False)
    """
    return name in (LOCK, HEARTBEAT) or (name.startswith(_MARKER) and name.endswith(".json"))


def now() -> str:
    """The time by the clock of this host, for people."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Claim:
    """Who holds a lock, or has begun to take it over.

    Attributes
    ----------
    run
        The run that may write.
    token
        Of this claim alone.
    output
        What the run writes.
    since
        When it was claimed, by the clock of its host.
    owner
        Its process.
    """

    run: str
    token: str
    output: str
    since: str
    owner: Owner

    @property
    def is_alive(self) -> bool | None:
        """Whether its owner is at work; None where that cannot be seen from here."""
        if self.owner == this_process():
            return self.token in _HELD
        return self.owner.is_alive

    def to_json(self) -> str:
        """The claim as its file holds it."""
        found = {"run": self.run, "token": self.token, "output": self.output, "since": self.since}
        return json.dumps({**found, **self.owner.to_dict()}, indent=2) + "\n"


def read_claim(folder: Folder, name: str = LOCK) -> Claim | None:
    """Who holds the lock of a sidecar; None where nobody does.

    Raises
    ------
    LockedError
        The file is damaged.
    StoreAccessError
        It cannot be read.
    """
    try:
        text = folder.read_text(name)
        if text is None:
            return None
        found = json.loads(text)
        texts = {key: str(found[key]) for key in ("run", "token", "output", "since")}
        return Claim(owner=Owner.from_dict(found), **texts)
    except (ValueError, KeyError, TypeError) as error:
        raise LockedError(
            f"the lock {folder.child(name)} is damaged",
            got=f"{type(error).__name__}: {error}",
            do="see that no run is at work on the output, then pass --force-unlock (in Python: force_unlock=True)",
        ) from error


def stake(folder: Folder, run: str, output: str, *, force: bool, sleep: Sleep) -> Claim:
    """Claim a sidecar for a run: nobody holds it, or its owner is dead, or `force` says so.

    Raises
    ------
    LockedError
        Another run is at work, or was as quick.
    StoreAccessError, StoreFullError
        The sidecar cannot be read or written.
    """
    claim = Claim(run, uuid4().hex, output, now(), this_process())
    _HELD.add(claim.token)
    try:
        _acquire(folder, claim, force, sleep)
    except BaseException:
        _HELD.discard(claim.token)
        raise
    return claim


def _acquire(folder: Folder, claim: Claim, force: bool, sleep: Sleep) -> None:
    # The second round is for a lock that is given back while it is looked at.
    for _ in range(2):
        if folder.create_text(LOCK, claim.to_json(), sleep=sleep):
            return
        if _take_over(folder, LOCK, claim, force, sleep):
            folder.write_text(LOCK, claim.to_json())
            _remove_markers(folder, claim)
            return
    _refuse(folder, read_claim(folder))


def _take_over(folder: Folder, name: str, claim: Claim, force: bool, sleep: Sleep) -> bool:
    """Win the right to replace the claim in a file; False where that is not there any more.

    Raises
    ------
    LockedError
        Its owner lives, or another was quicker.
    """
    held = _held(folder, name, force)
    if held is None:
        return folder.read_text(name) is not None and force
    if not force and not _is_dead(folder, held, sleep):
        _refuse(folder, held)
    marker = _marker(held)
    # A marker stands for an instant, unless its maker has died: then it is taken over as the lock itself is.
    if not folder.create_text(marker, claim.to_json(), sleep=sleep) and not _take_over(
        folder, marker, claim, force, sleep
    ):
        return False
    if _held(folder, name, force) == held:
        return True
    _withdraw(folder, claim)
    return False


def _withdraw(folder: Folder, claim: Claim) -> None:
    """Remove the markers of a claim that has come too late."""
    for name in folder.names():
        if name.startswith(_MARKER) and folder.read_text(name) == claim.to_json():
            folder.remove_text(name)


def _held(folder: Folder, name: str, force: bool) -> Claim | None:
    try:
        return read_claim(folder, name)
    except LockedError:
        if force:
            return None
        raise


def _marker(claim: Claim) -> str:
    """The file whose maker may replace or remove that claim."""
    return f"{_MARKER}{claim.token}.json"


def _is_dead(folder: Folder, claim: Claim, sleep: Sleep) -> bool:
    """Whether the owner of a claim is dead: seen at once on this system, else by its silence."""
    alive = claim.is_alive
    if alive is not None:
        return not alive
    log.warning("run %s of %s held the lock of %s: it is waited for", claim.run, claim.owner, folder)
    heard = folder.read_text(HEARTBEAT)
    for _ in range(round(SILENCE / _LOOK)):  # by what changes, since clocks differ
        sleep(_LOOK)
        if folder.read_text(HEARTBEAT) != heard:
            return folder.read_text(LOCK) is None  # it has ended meanwhile
    return True


def _refuse(folder: Folder, claim: Claim | None) -> NoReturn:
    who = f"run {claim.run}, {claim.owner}, since {claim.since}" if claim else "another run, which has just ended"
    raise LockedError(
        f"another run is at work on {claim.output if claim and claim.output else folder}",
        got=who,
        expected="one run at a time for each output",
        do="wait for it or stop it; where it is surely dead, pass --force-unlock (in Python: force_unlock=True)",
    )


def give_back(folder: Folder, claim: Claim) -> None:
    """Give a claim back where it still stands, and take the sidecar away where nothing else is in it."""
    # A claim of its own: should this process die here, the marker is taken over as any other.
    last = replace(claim, token=uuid4().hex)
    _HELD.add(last.token)
    try:
        # No pause: who takes over a claim of an owner that lives has been told to.
        if read_claim(folder) == claim and folder.create_text(_marker(claim), last.to_json(), sleep=bool):
            folder.remove_text(HEARTBEAT)
            folder.remove_text(LOCK)
            folder.remove_text(_marker(claim))
            folder.remove_if_empty()
    except (LockedError, OSError) as error:  # how the run itself has ended says more
        log.warning("the lock of %s may be left: %s", folder, error)
    finally:
        _HELD.difference_update((claim.token, last.token))


def _remove_markers(folder: Folder, claim: Claim) -> None:
    """Remove what earlier takers have left: every marker but one that would take over this very claim."""
    for name in folder.names():
        if name.startswith(_MARKER) and name != _marker(claim):
            folder.remove_text(name)
