"""Trying again what may pass: pauses that grow, counted, and no longer than a process has patience."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tilewise.trouble import Doing, Trouble, trouble_of

T = TypeVar("T")


@dataclass(frozen=True)
class Pauses:
    """Seconds between tries: the first one, how they grow, and at most."""

    first: float
    factor: float
    most: float

    def seconds(self, tried: int) -> float:
        """The pause after so many tries, give or take a quarter: many workers should not knock at once.

        >>> 0.75 <= Pauses(1, 8, 60).seconds(1) <= 1.25, 45 <= Pauses(1, 8, 60).seconds(9) <= 75
        (True, True)
        """
        growth: float = self.factor ** min(tried - 1, 50)
        return min(self.most, self.first * growth) * random.uniform(0.75, 1.25)


#: Three pauses outlast a store that is away for a minute.
PASSING = Pauses(1.0, 8.0, 60.0)
#: A chunk that is being written is whole a moment later; one that is damaged stays so.
UNREADABLE = Pauses(0.1, 4.0, 2.0)
#: Seconds that a process waits in a row without any success in between.
PATIENCE = 600.0
#: Seconds between two looks at whether the run is over.
_LOOK = 0.5


class Patience:
    """What one process has left for a run: retries of each call, and seconds to wait until something works again."""

    def __init__(self, retries: int, over: Callable[[], bool]) -> None:
        self.retries = retries
        self.over = over
        self._waited = 0.0

    def wait(self, seconds: float) -> bool:
        """Wait; whether there is any use in trying again."""
        if self._waited >= PATIENCE:
            return False
        self._waited += seconds
        end = time.monotonic() + seconds
        while not self.over() and (left := end - time.monotonic()) > 0:
            time.sleep(min(_LOOK, left))
        return not self.over()

    def restore(self) -> None:
        """Something has worked."""
        self._waited = 0.0


class Tries:
    """The tries of one tile.

    >>> tries = Tries(Patience(3, over=bool))
    >>> tries(lambda: 1 + 1, "read"), tries.count
    (2, 1)
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.count = 1
        #: What was behind the last call that failed for good.
        self.trouble: Trouble | None = None

    def __call__(self, what: Callable[[], T], doing: Doing) -> T:
        """Result of a call, which is made again after what may pass.

        Raises
        ------
        Exception
            What the call has raised in the end.
        """
        for tried in itertools.count(1):
            try:
                result = what()
            except Exception as error:
                trouble = trouble_of(error, doing)
                if not self._may_try_again(trouble, tried):
                    self.trouble = trouble
                    raise
            else:
                self.patience.restore()
                return result
            self.count += 1
        raise AssertionError("there is no last number")

    def _may_try_again(self, trouble: Trouble, tried: int) -> bool:
        pauses = {Trouble.PASSING: PASSING, Trouble.UNREADABLE: UNREADABLE}.get(trouble)
        if pauses is None or tried > self.patience.retries:
            return False
        return self.patience.wait(pauses.seconds(tried))
