"""What is said of a run, from records that the real writers of them have left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from s3_server import S3Server
from tilewise.claims import LOCK, read_claim
from tilewise.cli import main
from tilewise.errors import MissingStoreError, UnsupportedStoreError
from tilewise.failures import FAILURES, Failures
from tilewise.fields import TileGrid
from tilewise.folders import Folder
from tilewise.info import ELSEWHERE, LOST, info
from tilewise.info_text import info_text
from tilewise.ledger import LEDGER, Ledger
from tilewise.locking import hold
from tilewise.records import TileRecord, TileState
from tilewise.runfile import RunRecord, Stage

GRID = TileGrid(("y", "x"), (100, 60), (10, 20))
PLAN = {"tiles": 30, "processes": 1, "slots": 2, "read_bytes": 27 << 20, "write_bytes": 3 << 20}


def records(sidecar: Folder, output: str, stage: Stage, *tiles: TileRecord) -> None:
    """What a run leaves in its sidecar."""
    RunRecord("b2", stage, output, {}, ("a1", "b2")).save(sidecar)
    sidecar.write_text("plan.json", json.dumps(PLAN))
    ledger, failures = Ledger.create(sidecar, GRID, {}), Failures(sidecar, GRID)
    for tile in tiles:
        ledger.add(tile)
        failures.add(tile)
    ledger.flush()
    failures.flush()


def done(number: int) -> TileRecord:
    return TileRecord(number, TileState.DONE, (0.5, 0.25, 0.25), {0: 150, 2: 50})


FAILED = TileRecord(4, TileState.FAILED, attempts=4, error="ValueError: no\nmore of it", details="Traceback ...")
DEAD = TileRecord(5, TileState.QUARANTINED, attempts=2, error="ClusterError: its worker died")


@pytest.fixture
def output(tmp_path: Path) -> str:
    return str(tmp_path / "out.zarr")


def sidecar_of(output: str) -> Folder:
    return Folder(f"{output}.tilewise")


def test_a_run_at_work(output: str) -> None:
    with hold(sidecar_of(output), "b2", output=output):
        records(sidecar_of(output), output, "running", *map(done, range(10)))
        found = info(output)
        text = info_text(found)
    assert (found.state, found.run, found.runs) == ("running", "b2", ("a1", "b2"))
    # Ten tiles of a second each by two slots, of 30 tiles and 30 MiB.
    assert found.rate == pytest.approx(2 << 20, rel=1e-6)
    assert found.left == pytest.approx(10.0, rel=1e-6)
    assert "tiles    10 of 30 done (33 %), 20 pending" in text
    assert "speed    2.00 MiB/s while at work, about 10.0 s left" in text
    assert "time     read 5.0 s (50 %), compute 2.5 s (25 %), write 2.5 s (25 %)" in text
    assert "pixels   1,500 ok, 500 rank_deficient" in text
    assert "run      b2, resumed after 1 before" in text
    assert "next     wait: it is at work" in text


def test_tiles_that_are_read_ahead_are_done_side_by_side(output: str) -> None:
    records(sidecar_of(output), output, "running", *map(done, range(10)))
    sidecar_of(output).write_text("plan.json", json.dumps({**PLAN, "read_ahead": 3}))
    found = info(output)
    assert found.rate == pytest.approx(8 << 20, rel=1e-6)
    assert found.left == pytest.approx(2.5, rel=1e-6)


def test_a_run_that_is_creating_its_output(output: str) -> None:
    with hold(sidecar_of(output), "b2", output=output):
        assert info(output).state == "starting"  # nothing but the lock is there
        RunRecord("b2", "creating", output).save(sidecar_of(output))
        found = info(output)
    assert (found.state, found.totals, found.tiles) == ("creating", None, 0)
    assert "creating the output" in info_text(found)


def test_tiles_that_failed_are_named_with_region_cause_and_command(output: str) -> None:
    records(sidecar_of(output), output, "finished", *map(done, range(4)), FAILED, DEAD, *map(done, range(6, 30)))
    found = info(output)
    text = info_text(found)
    assert (found.state, found.failed, found.count(TileState.DONE)) == ("finished", 2, 28)
    assert "failed       tile 4 (y=10:20, x=20:40), tried 4 times: ValueError: no\n" in text
    assert f"             tilewise replay {output} --tile 4\n" in text
    assert "quarantined  tile 5 (y=10:20, x=40:60), tried 2 times: ClusterError: its worker died" in text
    assert "1 failed, 1 quarantined" in text
    assert f"mend what fails, shown by `tilewise replay {output} --tile 4`, then `tilewise run JOB.yaml --res" in text


def test_many_failures_are_not_all_shown(output: str) -> None:
    records(sidecar_of(output), output, "finished", *(replace(FAILED, number=n) for n in range(30)))
    text = info_text(info(output))
    assert text.count("ValueError: no") == 10
    assert "and 20 more" in text


@pytest.mark.parametrize(
    ("stage", "tiles", "state", "todo"),
    [
        ("running", 7, LOST, "--resume`: it does what is not done"),
        ("creating", 0, LOST, "--resume`; where it is refused, with --overwrite instead"),
        ("stopped", 7, "stopped", "--resume`: it does what is not done"),
        ("failed", 30, "failed", "nothing; `tilewise audit"),
        ("finished", 30, "finished", "nothing; `tilewise audit"),
    ],
)
def test_how_a_run_has_ended_and_what_to_do(output: str, stage: Stage, tiles: int, state: str, todo: str) -> None:
    records(sidecar_of(output), output, stage, *map(done, range(tiles)))
    found = info(output)
    assert found.state == state
    assert todo in info_text(found)


def test_a_process_that_is_dead_and_one_elsewhere(output: str) -> None:
    sidecar = sidecar_of(output)
    records(sidecar, output, "running", done(3))
    with hold(sidecar, "b2", output=output):
        claim = read_claim(sidecar)
    assert claim is not None
    owners = {LOST: replace(claim.owner, started="1"), ELSEWHERE: replace(claim.owner, boot="another")}
    for state, owner in owners.items():
        sidecar.write_text(LOCK, replace(claim, owner=owner).to_json())
        found = info(output)
        assert found.state == state
        assert f"{owner.pid} on {owner.host}, since" in info_text(found)
    assert "--force-unlock" in found.todo


def test_a_run_that_starts_after_another(output: str) -> None:
    records(sidecar_of(output), output, "stopped", *map(done, range(10)))
    with hold(sidecar_of(output), "c3", output=output):
        found = info(output)
    assert (found.state, found.run, found.count(TileState.DONE)) == ("starting", "c3", 10)


def test_a_probe_is_no_run(output: str) -> None:
    sidecar = sidecar_of(output)
    with hold(sidecar, "probe-d4", output=output):
        assert info(output).state == "probing"
        claim = read_claim(sidecar)
    assert claim is not None
    records(sidecar, output, "stopped", *map(done, range(10)))
    with hold(sidecar, "probe-d4", output=output):
        text = info_text(info(output))
    assert "a few tiles are probed aside" in text
    assert "10 of 30 done" in text
    assert "next     wait: it is probed" in text
    sidecar.write_text(LOCK, replace(claim, owner=replace(claim.owner, started="1")).to_json())
    found = info(output)
    assert (found.state, found.run, found.owner) == ("stopped", "b2", None)


def test_records_that_are_damaged_are_named(output: str) -> None:
    sidecar = sidecar_of(output)
    records(sidecar, output, "finished", done(3), FAILED)
    names = ("run.json", "plan.json", LOCK, f"{LEDGER}/zarr.json")
    for name in names:
        (Path(sidecar.place) / name).write_text("[")
    found = info(output)
    assert (found.state, len(found.problems)) == ("unknown", len(names))
    assert [any(name.split("/")[0] in problem for problem in found.problems) for name in names] == [True] * len(names)
    assert "--overwrite`: what was done is not known" in info_text(found)


def test_what_is_not_damaged_is_told(output: str) -> None:
    records(sidecar_of(output), output, "finished", done(3), FAILED)
    (Path(sidecar_of(output).place) / FAILURES).write_text("[1]")
    found = info(output)
    assert (found.failed, len(found.problems)) == (1, 1)
    assert FAILURES in found.problems[0]
    assert "and 1 more" in info_text(found)


def test_no_records(output: str, tmp_path: Path) -> None:
    with pytest.raises(MissingStoreError, match=r"no records of a run on .*out\.zarr; got: nothing at .*--sidecar"):
        info(output)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_text("")
    with pytest.raises(MissingStoreError, match=r"other without run\.json"):
        info(output, sidecar=str(tmp_path / "other"))
    with pytest.raises(UnsupportedStoreError, match="output is a URL with credentials"):
        info("s3://me:secret@bucket/out.zarr")


def test_the_command(output: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    elsewhere = Folder(str(tmp_path / "records"))
    records(elsewhere, output, "finished", done(3), FAILED)
    elsewhere.write_text("report.json", json.dumps({"seconds": 75.0}))
    with pytest.raises(SystemExit, match="0"):
        main(["info", output, "--sidecar", str(elsewhere), "--json"])
    found = json.loads(capfd.readouterr().out)
    assert found["tiles"] == {"total": 30, "pending": 28, "done": 1, "failed": 1, "quarantined": 0}
    assert found["statuses"] == {"ok": 150, "rank_deficient": 50}
    assert found["phases"] == {"read": 0.5, "compute": 0.25, "write": 0.25}
    assert found["failures"][0]["details"] == "Traceback ..."
    assert found["failures"][0]["replay"] == f"tilewise replay {output} --sidecar {elsewhere} --tile 4"
    with pytest.raises(SystemExit, match="0"):
        main(["info", f"file://{output}", "--sidecar", f"file://{elsewhere}"])
    assert "1 min 15 s, the last run alone" in capfd.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["info", output])
    assert "no records of a run" in capfd.readouterr().err


def test_behind_a_url(s3: S3Server) -> None:
    s3.make_bucket("info")
    output = "s3://info/out.zarr"
    records(sidecar_of(output), output, "stopped", done(3))
    assert (info(output).state, info(output).count(TileState.DONE)) == ("stopped", 1)
