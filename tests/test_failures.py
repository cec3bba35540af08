"""Why tiles failed: kept, mended, bounded, and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewise.errors import ResumeError
from tilewise.failures import FAILURES, LONGEST, MOST, Failure, Failures
from tilewise.fields import TileGrid
from tilewise.folders import Folder
from tilewise.records import TileRecord, TileState

GRID = TileGrid(("y", "x"), (100, 2000), (10, 10))


def failed(number: int, error: str = "ValueError: no", details: str = "") -> TileRecord:
    return TileRecord(number, TileState.FAILED, attempts=4, error=error, details=details)


def test_a_failure_is_kept_until_it_is_mended(tmp_path: Path) -> None:
    sidecar = Folder(str(tmp_path))
    failures = Failures(sidecar, GRID)
    failures.add(TileRecord(201, TileState.QUARANTINED, error="ClusterError: gone"))
    failures.add(failed(7, "ValueError: no\nnot this"))
    failures.add(TileRecord(8))
    failures.add(TileRecord(9, TileState.PENDING, error="given up"))
    failures.flush()
    assert tuple(Failures.load(sidecar, GRID)) == (
        Failure(7, "tile 7 (y=0:10, x=70:80)", "failed", "ValueError: no\nnot this", "", 4),
        Failure(201, "tile 201 (y=10:20, x=10:20)", "quarantined", "ClusterError: gone", "", 1),
    )
    again = Failures.load(sidecar, GRID)
    again.add(TileRecord(7))
    again.add(TileRecord(201, TileState.PENDING))
    again.add(failed(201))
    again.flush()
    assert [(failure.number, failure.state) for failure in Failures.load(sidecar, GRID)] == [(201, "failed")]


def test_nothing_is_written_where_nothing_has_changed(tmp_path: Path) -> None:
    failures = Failures(Folder(str(tmp_path)), GRID)
    failures.flush()
    failures.add(TileRecord(3))
    failures.flush()
    assert list(tmp_path.iterdir()) == []


def test_a_bounded_number_of_bounded_texts_is_kept(tmp_path: Path) -> None:
    failures = Failures(Folder(str(tmp_path)), GRID)
    for number in range(MOST + 5):
        failures.add(failed(number, details=f"{'far ' * LONGEST}near"))
    failures.add(failed(3, "KeyError: another"))  # one that is known is known better
    assert len(failures) == MOST
    kept = list(failures)
    assert all(len(failure.details) <= LONGEST + 4 and failure.details.endswith("near") for failure in kept[:3])
    assert kept[3].error == "KeyError: another"
    failures.add(TileRecord(0))
    failures.add(failed(MOST + 1))  # there is room again
    assert [failure.number for failure in failures][-1] == MOST + 1


@pytest.mark.parametrize("text", ["{", '{"number": 1}', "[1]", '[{"number": 1}]'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FAILURES).write_text(text)
    with pytest.raises(ResumeError, match=r"damaged; got: .*failures.json.*remove"):
        Failures.load(Folder(str(tmp_path)), GRID)


def test_no_file_tells_of_no_failures(tmp_path: Path) -> None:
    assert list(Failures.load(Folder(str(tmp_path / "nowhere")), GRID)) == []
