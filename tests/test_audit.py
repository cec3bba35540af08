"""Planted faults of an output, each of which an audit names, and mends on request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import stores
import tilewise
from tilewise.audit import audit, bounded_map
from tilewise.cli import main
from tilewise.coordinates import ArrayRef
from tilewise.errors import MissingStoreError, ParameterError, ResumeError
from tilewise.findings import Audit
from tilewise.folders import Folder
from tilewise.ledger import Ledger
from tilewise.records import TileRecord, TileState
from tilewise.units import Units

SHAPE = (3, 21, 30)  # band, y, x
#: Tiles of y=8, x=20: three by two, ragged at both ends.
TILES = 6
Make = Callable[..., str]


def x() -> np.ndarray[Any, Any]:
    data = np.random.default_rng(5).standard_normal(SHAPE).astype("float32")
    data[:, 8:16, :20] = np.nan  # tile 2 gives nothing but the fill value
    return data


def write_input(folder: Path) -> str:
    fields = {"x": (("band", "y", "x"), x()), "y": (("y",), np.arange(21.0)), "lat": (("y", "x"), np.ones((21, 30)))}
    return stores.write(folder / "in.zarr", fields, chunks={"y": 8, "x": 10}, attrs={"x": {"coordinates": "lat"}})


def job(folder: Path, **output: Any) -> tilewise.Job:
    settings: dict[str, Any] = {"chunks": {"y": 4, "x": 5}, **output}
    return tilewise.Job(
        kernel=tilewise.Norm(dim="band"),
        inputs={"x": tilewise.Input(store=write_input(folder), variable="x")},
        output=tilewise.Output(store=str(folder / "out.zarr"), **settings),
        tile={"y": 8, "x": 20},
        cluster=tilewise.Cluster(kind="threads", workers=2),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Outputs as runs have left them, made once and copied for each test."""
    folders = {}
    for name, output in {"chunked": {}, "sharded": {"shards": {"y": 8, "x": 10}}, "bare": {"codec": "none"}}.items():
        folders[name] = tmp_path_factory.mktemp(name)
        tilewise.run(job(folders[name], **output))
    return folders


@pytest.fixture
def make(made: dict[str, Path], tmp_path: Path) -> Make:
    def copied(name: str = "chunked") -> str:
        for path in made[name].iterdir():
            shutil.copytree(path, tmp_path / path.name)
        for document in (tmp_path / "out.zarr.tilewise").rglob("*.json"):
            document.write_text(document.read_text().replace(str(made[name]), str(tmp_path)))
        return str(tmp_path / "out.zarr")

    return copied


def flip(path: Path, at: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def kinds(found: Audit) -> dict[str, int]:
    return dict(found.counts)


# --- what is well


@pytest.mark.parametrize(("name", "units"), [("chunked", 36), ("sharded", 9)])
def test_a_whole_output_is_clean(make: Make, name: str, units: int) -> None:
    found = audit(make(name), sample=TILES)
    assert found.clean, found.findings
    assert (found.tiles, found.done, found.units) == (TILES, TILES, units)
    assert found.recomputed == tuple(range(TILES))
    assert found.nbytes > 0
    assert found.notes == ()
    assert json.loads(json.dumps(found.to_dict()))["clean"] is True


def test_the_seed_settles_the_sample(make: Make) -> None:
    output = make()
    first = audit(output, sample=3)
    assert len(first.recomputed) == 3
    assert audit(output, sample=3, seed=first.seed).recomputed == first.recomputed
    assert len({audit(output, sample=1, seed=seed).recomputed for seed in range(3)}) > 1


def test_nothing_is_written(make: Make, tmp_path: Path) -> None:
    output = make()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    audit(output)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# --- write units


def _delete(path: Path) -> None:
    path.unlink()


def _flip(path: Path) -> None:
    flip(path, path.stat().st_size // 3)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", ["chunked", "sharded"])
@pytest.mark.parametrize(
    ("harm", "kind"), [(_delete, "missing"), (_flip, "damaged"), (_cut, "damaged"), (_empty, "damaged")]
)
def test_a_harmed_unit_is_named_with_its_tile(make: Make, name: str, harm: Callable[[Path], None], kind: str) -> None:
    output = make(name)
    key = {"chunked": "norm/c/3/5", "sharded": "norm/c/1/2"}[name]  # y=12:16, x=25:30 and y=8:16, x=20:30
    harm(Path(output, key))
    found = audit(output, sample=TILES)
    assert {(f.kind, f.tile, f.region, f.array, f.key) for f in found.findings} == {
        (kind, 3, "y=8:16, x=20:30", "norm", key)
    }
    assert found.findings[0].mend == f"tilewise audit {output} --repair"
    assert 3 not in found.recomputed


@pytest.mark.parametrize("name", ["chunked", "sharded"])
def test_a_repair_does_just_the_harmed_tiles_again(make: Make, name: str) -> None:
    output = make(name)
    before = stores.read(output, "norm")
    _delete(Path(output, "norm/c/0/0"))
    _flip(Path(output, "norm/c/1/2"))
    last = max(Path(output, "norm/c").rglob("*"))  # of the last tile
    written = last.stat().st_mtime_ns
    found = audit(output, repair=True)
    tiles = {"chunked": 1, "sharded": 2}[name]
    assert (found.clean, found.repaired, found.recomputed) == (True, tiles, (0, 3)[:tiles]), found.findings
    np.testing.assert_array_equal(stores.read(output, "norm").view("u4"), before.view("u4"))
    assert last.stat().st_mtime_ns == written


def test_a_chunk_of_fill_values_is_there_and_an_absent_one_is_not(make: Make) -> None:
    output = make()
    assert np.isnan(stores.read(output, "norm")[8:16, :20]).all()
    _delete(Path(output, "norm/c/2/0"))
    assert np.isnan(stores.read(output, "norm")[8:16, :20]).all()  # for a reader it looks the same
    assert kinds(audit(output)) == {"missing": 1}


def test_a_chunk_that_the_index_of_its_shard_does_not_have(make: Make) -> None:
    output = make("sharded")
    array = zarr.open_array(output, path="norm", mode="r+")  # it leaves out chunks of fill values
    array[4:8, 15:20] = np.nan
    (finding,) = audit(output, sample=0).findings
    assert (finding.kind, finding.tile, finding.key) == ("missing", 0, "norm/c/0/1")
    assert finding.what == "chunk (1, 1) of the shard is not there"


def test_of_a_shard_the_damaged_chunk_is_named(make: Make) -> None:
    output = make("sharded")
    flip(Path(output, "norm/c/0/0"), 20)
    (finding,) = audit(output, sample=0).findings
    assert finding.what.startswith("chunk (0, 0) of the shard cannot be decoded: RuntimeError")


@pytest.mark.parametrize("name", ["chunked", "sharded"])
def test_a_flipped_bit_is_found_or_changes_nothing(make: Make, name: str) -> None:
    output = make(name)
    path = Path(output, "norm/c/0/1")
    whole, values = path.read_bytes(), stores.read(output, "norm")
    units = Units(ArrayRef(output, "norm"))
    draw = np.random.default_rng(3)
    found = 0
    for at in draw.choice(len(whole), 40, replace=False):
        flip(path, int(at), 1 << int(draw.integers(8)))
        flaws, _ = units.flaws((0, 1))
        found += bool(flaws)
        if not flaws:
            np.testing.assert_array_equal(stores.read(output, "norm"), values)
        path.write_bytes(whole)
    assert found > 30


def test_a_codec_without_checksums_is_said_and_only_recomputing_finds_a_changed_byte(make: Make) -> None:
    output = make("bare")
    flip(Path(output, "norm/c/0/0"), 2, 128)
    found = audit(output, sample=0)
    assert found.clean
    assert found.notes == ("norm: codec none has no checksum, so that a changed byte shows only in recomputed tiles",)
    (finding,) = audit(output, sample=TILES).findings
    assert (finding.kind, finding.tile, finding.array) == ("differs", 0, "norm")
    assert finding.what.startswith("1 of 160 cells differ")


@pytest.mark.parametrize(
    ("codec", "note"),
    [("gzip", ""), ("blosc", "blosc"), ({"name": "zstd", "configuration": {"checksum": False}}, "zstd")],
)
def test_which_codecs_have_checksums(tmp_path: Path, codec: Any, note: str) -> None:
    tilewise.run(job(tmp_path, codec=codec, shards={"y": 8, "x": 10}))
    found = audit(str(tmp_path / "out.zarr"), sample=0)
    assert found.clean
    assert [text.split()[2] for text in found.notes] == ([note] if note else [])


# --- tiles


def test_tiles_that_are_not_done(make: Make) -> None:
    output = make()
    ledger = Ledger.open(Folder(f"{output}.tilewise"), write=True)
    ledger.reset([0, 5])
    ledger.add(TileRecord(3, TileState.FAILED, error="ArithmeticError: found 7"))
    ledger.add(TileRecord(4, TileState.QUARANTINED))
    ledger.flush()
    found = audit(output)
    assert (found.done, kinds(found)) == (2, {"pending": 1, "failed": 1, "quarantined": 1})
    pending, failed, quarantined = found.findings
    assert pending.what == "2 of 6 tiles have not been done"
    assert (failed.tile, failed.mend) == (3, f"tilewise replay {output} --tile 3")
    assert quarantined.tile == 4
    mended = audit(output, repair=True)
    assert (mended.clean, mended.repaired, mended.done) == (True, 4, TILES)


def test_wrong_values_in_whole_units_are_found_where_they_are_recomputed(make: Make) -> None:
    output = make("sharded")
    array = zarr.open_array(output, path="norm", mode="r+").with_config({"write_empty_chunks": True})
    array[0:8, 20:30] = 1.0
    assert audit(output, sample=0).clean
    found = audit(output, sample=TILES)
    assert [(f.kind, f.tile) for f in found.findings] == [("differs", 1)]


def test_an_input_that_cannot_be_read_any_more_is_a_finding_of_the_recomputed_tile(make: Make, tmp_path: Path) -> None:
    output = make()
    _cut(tmp_path / "in.zarr/x/c/0/0/0")
    found = audit(output, sample=TILES)
    assert [(f.kind, f.tile) for f in found.findings] == [("differs", 0)]
    assert found.findings[0].what.startswith("it cannot be recomputed: ")
    assert found.findings[0].mend == f"tilewise replay {output} --tile 0"


@pytest.mark.parametrize(("factor", "clean"), [(1 + 1e-6, True), (1.01, False)])
def test_in_another_environment_rounding_is_a_note_and_more_is_a_finding(
    make: Make, factor: float, clean: bool
) -> None:
    output = make()
    path = Path(f"{output}.tilewise/run.json")
    record = json.loads(path.read_text())
    record["environment"]["torch"] = "1.0"
    path.write_text(json.dumps(record))
    array = zarr.open_array(output, path="norm", mode="r+")
    array[0:4, 0:5] = array[0:4, 0:5] * np.float32(factor)
    found = audit(output, sample=TILES)
    assert found.clean is clean
    assert any("torch was 1.0, is " in note for note in found.notes)
    assert any(note.startswith("tile 0, norm: ") for note in found.notes) is clean


# --- arrays, and what lies beside

STRAY = f"0.{'0' * 32}.partial"


def test_an_array_that_has_gone_or_is_another(make: Make) -> None:
    output = make()
    metadata = json.loads(Path(output, "norm/zarr.json").read_text())
    Path(output, "norm/zarr.json").write_text(json.dumps({**metadata, "data_type": "float64"}))
    (finding,) = audit(output).findings
    assert (finding.kind, finding.array) == ("array", "norm")
    assert finding.what == 'data_type is "float64", not "float32"'
    shutil.rmtree(Path(output, "norm"))
    assert kinds(audit(output)) == kinds(audit(output, sample=0)) == {"array": 1}
    shutil.rmtree(output)
    (finding,) = audit(output).findings
    assert finding.what == "the group is not there, or has lost its consolidated metadata"
    assert finding.mend == "run the job again with --overwrite"


def test_an_output_of_another_job_is_not_taken_for_this_one(make: Make, tmp_path: Path) -> None:
    output = make()
    shutil.rmtree(output)
    other = job(tmp_path / "other", chunks={"y": 8, "x": 5})
    tilewise.run(replace(other, output=replace(other.output, store=output), sidecar=str(tmp_path / "elsewhere")))
    (finding,) = audit(output).findings
    assert (finding.kind, finding.array, finding.what) == ("array", "norm", "chunks (8, 5), not (4, 5)")


def test_a_coordinate_is_of_no_tile(make: Make) -> None:
    output = make()
    _delete(Path(output, "lat/c/0/0"))
    _flip(Path(output, "y/c/1"))
    found = audit(output, sample=0)
    assert {(f.kind, f.array, f.tile) for f in found.findings} == {("missing", "lat", None), ("damaged", "y", None)}
    assert {f.mend for f in found.findings} == {"run the job again with --overwrite"}


def test_files_of_interrupted_writes(make: Make) -> None:
    output = make()
    for folder in (output, f"{output}.tilewise/ledger.zarr"):
        Path(folder, STRAY).touch()
    found = audit(output, sample=0)
    assert kinds(found) == {"stray": 2}
    assert found.findings[0].key == str(Path(output, STRAY))


def test_findings_stay_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewise.findings.MOST", 3)
    output = make()
    shutil.rmtree(Path(output, "norm/c/0"))
    found = audit(output, sample=0)
    assert (kinds(found), len(found.findings)) == ({"missing": 6}, 3)


def test_behind_a_url(tmp_path: Path) -> None:
    place = f"memory://audit/{tmp_path.name}/out.zarr"
    given = job(tmp_path)
    tilewise.run(replace(given, output=replace(given.output, store=place)))
    assert audit(place).clean
    Folder(f"{place}/norm/c/0").remove()
    assert kinds(audit(place)) == {"missing": 6}
    assert audit(place, repair=True).clean


def test_a_packed_output_is_compared_as_it_is_stored(tmp_path: Path) -> None:
    packed = {"norm": {"dtype": "int16", "scale_factor": 0.001}}
    tilewise.run(job(tmp_path, encoding=packed))
    output = str(tmp_path / "out.zarr")
    assert audit(output, sample=TILES).clean
    array = zarr.open_array(output, path="norm", mode="r+")
    array[0, 0] = array[0, 0] + 1
    assert kinds(audit(output, sample=TILES)) == {"differs": 1}


# --- whose code runs


STRANGER = """\
from pathlib import Path
Path({mark!r}).touch()
from user_kernels import Total
class Theirs(Total):
    pass
"""


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """An output whose records name a kernel of a module that leaves a mark when it is imported."""
    store = stores.write(tmp_path / "x.zarr", {"x": (("band", "y"), np.ones((2, 6)))}, chunks={"y": 2})
    from user_kernels import Total

    output = str(tmp_path / "out.zarr")
    tilewise.run(tilewise.Job(kernel=Total(dim="band"), inputs={"x": store}, output=output))
    mark = tmp_path / "mark"
    (tmp_path / "stranger_kernels.py").write_text(STRANGER.format(mark=str(mark)))
    monkeypatch.syspath_prepend(tmp_path)
    for path in (tmp_path / "out.zarr.tilewise").rglob("*.json"):
        path.write_text(path.read_text().replace("user_kernels:Total", "stranger_kernels:Theirs"))
    return output, mark


def test_a_strangers_kernel_is_not_imported_unless_allowed(strange: tuple[str, Path]) -> None:
    output, mark = strange
    for options in ({}, {"allow": ["stranger"]}, {"sample": 0, "repair": True}):
        with pytest.raises(ParameterError, match=r"stranger_kernels:Theirs.*pass --allow stranger_kernels"):
            audit(output, **options)  # type: ignore[arg-type]
    assert audit(output, sample=0).clean
    assert not mark.exists()
    assert audit(output, allow=["stranger_kernels"]).clean
    assert mark.exists()


def test_workers_that_records_name_are_not_used(make: Make) -> None:
    from tilewise.recorded import Recorded

    output = make()
    path = Path(f"{output}.tilewise/job.json")
    document = json.loads(path.read_text())
    document["cluster"] = {"kind": "address", "address": "tcp://elsewhere:8786"}
    path.write_text(json.dumps(document))
    found = Recorded.of(output).job()
    assert found.cluster == tilewise.Cluster()
    assert (found.output.store, found.sidecar_folder.place) == (output, f"{output}.tilewise")


# --- refusals


def test_an_output_without_records(tmp_path: Path, make: Make) -> None:
    with pytest.raises(ResumeError, match="there are no records of a run"):
        audit(str(tmp_path / "none.zarr"))
    output = make()
    for text in ("", "[]", "{", '{"kernel": {"name": "norm"}}'):
        Path(f"{output}.tilewise/job.json").write_text(text)
        with pytest.raises(ResumeError, match=r"job\.json is damaged"):
            audit(output)
    assert audit(output, sample=0).clean


def test_an_audit_stands_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_input(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = tilewise.Input(store="in.zarr", variable="x")
    tilewise.run(tilewise.Job(kernel=tilewise.Norm(dim="band"), inputs={"x": given}, output="out.zarr"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    _delete(tmp_path / "out.zarr/norm/c/0/0")
    assert audit("../out.zarr", repair=True).repaired > 0
    monkeypatch.chdir(tmp_path)
    assert audit("out.zarr").clean


def test_records_elsewhere_are_named(make: Make, tmp_path: Path) -> None:
    output = make()
    (tmp_path / "out.zarr.tilewise").rename(tmp_path / "records")
    _delete(Path(output, "norm/c/0/0"))
    found = audit(output, sidecar=str(tmp_path / "records"))
    assert found.findings[0].mend == f"tilewise audit {output} --sidecar {tmp_path / 'records'} --repair"


def test_inputs_that_are_gone_or_others(make: Make, tmp_path: Path) -> None:
    output = make()
    shutil.rmtree(tmp_path / "in.zarr")
    with pytest.raises(MissingStoreError):
        audit(output)
    assert audit(output, sample=0).clean
    stores.write(tmp_path / "in.zarr", {"x": (("band", "y", "x"), np.ones((3, 21, 31)))})
    with pytest.raises(ResumeError, match=r"got: inputs.x.shape was"):
        audit(output)


def test_an_input_that_was_in_memory(tmp_path: Path) -> None:
    import xarray as xr

    given = tilewise.Job(
        kernel=tilewise.Norm(dim="band"),
        inputs={"x": xr.DataArray(np.ones((2, 6)), dims=("band", "y"))},
        output=str(tmp_path / "out.zarr"),
    )
    tilewise.run(given)
    with pytest.raises(ResumeError, match="input 'x' was in memory"):
        audit(given.output.store)
    assert audit(given.output.store, sample=0).clean


@pytest.mark.parametrize("sample", [-1, 1.5, True])
def test_a_sample_is_a_count(tmp_path: Path, sample: Any) -> None:
    with pytest.raises(ParameterError, match="sample is not a count"):
        audit(str(tmp_path), sample=sample)


def test_few_items_are_in_work_at_a_time() -> None:
    taken = []

    def items() -> Any:
        for i in range(50):
            taken.append(i)
            yield i

    results = bounded_map(lambda i: i, items(), 2)
    assert next(results) == 0
    assert len(taken) <= 6
    assert list(results) == list(range(1, 50))


# --- the command


def test_the_command(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: str) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as exit_:
            main(("audit", *arguments))
        return exit_.value.code, capfd.readouterr().out

    output = make()
    code, out = call(output, "--seed", "7", "--sample", "2")
    assert (code, out.splitlines()[1]) == (0, "tiles       6 of 6 done")
    assert out.splitlines()[2].startswith("units       36 write units decoded, ")
    assert out.splitlines()[3] == "recomputed  tiles 0, 3 (--seed 7)"
    assert out.splitlines()[-1] == "findings    none"
    _delete(Path(output, "norm/c/0/0"))
    code, out = call(output)
    assert code == 3
    assert out.splitlines()[-3:] == [
        "findings    1: 1 missing",
        "            missing: tile 0 (y=0:8, x=0:20), norm/c/0/0: it is not there",
        f"to mend     tilewise audit {output} --repair",
    ]
    code, out = call(output, "--json", "--quiet")
    assert (code, json.loads(out)["counts"]) == (3, {"missing": 1})
    code, out = call(output, "--repair", "--quiet")
    assert (code, out) == (0, "")
    assert call(output + "x")[0] == 2


def test_a_packed_output_of_a_single_value_is_computed_once_more(tmp_path: Path) -> None:
    source = stores.write(tmp_path / "in.zarr", {"x": (("band",), np.array([3.0, 4.0]))})
    output = tilewise.Output(
        store=str(tmp_path / "o.zarr"), encoding={"norm": {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1}}
    )
    tilewise.run(tilewise.Job(kernel=tilewise.Norm(dim="band"), inputs={"x": source}, output=output))
    found = audit(output.store, sample=1)
    assert found.recomputed == (0,)
    assert found.clean
