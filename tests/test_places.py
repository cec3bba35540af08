"""Stores wherever they lie: a real S3 server, zip archives, and what is refused by name."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import traceback
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import zarr

import stores
import tilewise
from faults import Copy
from s3_server import SECRET, S3Server, serve
from shared_data import shared
from tilewise import access, config, probing
from tilewise.errors import (
    ConfigError,
    MissingStoreError,
    MissingVariableError,
    OutputExistsError,
    TileError,
    UnsupportedStoreError,
)
from tilewise.folders import Folder
from tilewise.outputs import Output
from tilewise.replacing import check_output
from tilewise.sources import Input, find

CUBE = np.random.default_rng(0).standard_normal((3, 8, 8)).astype("float32")
DIMS = ("band", "row", "column")
CHUNKS = {"row": 4, "column": 4}


def write(path: Path) -> str:
    return stores.write(path, {"x": (DIMS, CUBE), "row": (("row",), np.arange(8.0))}, chunks=CHUNKS)


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A bucket of the test's own that holds `in.zarr`."""
    name = "b" + str(abs(hash(request.node.nodeid)))
    s3.make_bucket(name)
    upload(write(tmp_path / "seed.zarr"), f"s3://{name}/in.zarr")
    return name


def upload(path: str, url: str) -> None:
    target = Folder(url)
    for file in (f for f in Path(path).rglob("*") if f.is_file()):
        relative = file.relative_to(path)
        put(target, str(relative), file.read_bytes())


def put(folder: Folder, name: str, data: bytes) -> None:
    buffer = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(data)
    zarr.core.sync.sync(access.zarr_store(folder.place, read_only=False).set(name, buffer))


def job(
    source: Any, output: Any, kind: Any = "threads", kernel: Any = None, workers: int = 2, **more: Any
) -> tilewise.Job:
    return tilewise.Job(
        kernel=kernel or tilewise.Norm(dim="band"),
        inputs={"x": source},
        output=output,
        cluster=tilewise.Cluster(kind=kind, workers=workers),
        tile=CHUNKS,
        **more,
    )


def read(place: str, name: str = "norm") -> Any:
    return zarr.open_array(access.zarr_store(place, read_only=True), path=name, mode="r")[...]


def local_result(tmp_path: Path) -> Any:
    tilewise.run(job(write(tmp_path / "here.zarr"), str(tmp_path / "there.zarr")))
    return stores.read(tmp_path / "there.zarr", "norm")


@pytest.mark.parametrize(
    ("source", "output", "kind", "workers"),
    [
        ("s3", "s3", "threads", 2),
        ("s3", "s3", "processes", 2),
        ("s3", "s3", "local", 1),
        ("local", "s3", "threads", 2),
        ("s3", "local", "threads", 2),
    ],
)
def test_a_remote_job_has_the_bits_of_a_local_one(
    bucket: str, tmp_path: Path, source: str, output: str, kind: str, workers: int
) -> None:
    place = {"s3": f"s3://{bucket}", "local": str(tmp_path)}
    expected = local_result(tmp_path)
    start = f"s3://{bucket}/in.zarr" if source == "s3" else str(tmp_path / "seed.zarr")
    report = tilewise.run(job(start, f"{place[output]}/out.zarr", kind, workers=workers))
    assert report.tiles == 4
    assert report.output == f"{place[output]}/out.zarr"
    np.testing.assert_array_equal(read(report.output), expected)
    np.testing.assert_array_equal(read(report.output, "row"), np.arange(8.0))
    assert Folder(report.output + ".tilewise").names() == stores.RECORDS
    assert json.loads(Folder(report.output + ".tilewise").read_text("report.json") or "")["tiles"] == 4


@pytest.mark.parametrize("ends", [("obstore+s3", "s3"), ("s3", "obstore+s3"), ("obstore+s3", "obstore+s3")])
def test_obstore_and_fsspec_read_and_write_the_same_store(bucket: str, tmp_path: Path, ends: tuple[str, str]) -> None:
    kind = "processes" if ends[0] == ends[1] else "threads"
    this = job(
        f"{ends[0]}://{bucket}/in.zarr", f"{ends[1]}://{bucket}/out.zarr", kind, workers=1 if kind == "processes" else 2
    )
    tilewise.run(this)
    expected = local_result(tmp_path)
    np.testing.assert_array_equal(read(f"s3://{bucket}/out.zarr"), expected)
    np.testing.assert_array_equal(read(f"obstore+s3://{bucket}/out.zarr"), expected)
    with pytest.raises(OutputExistsError, match="already exists"):
        tilewise.run(this)
    # This process replaces an output, wherever its workers are.
    tilewise.run(replace(this, cluster=tilewise.Cluster(kind="threads")), overwrite=True)
    np.testing.assert_array_equal(read(f"s3://{bucket}/out.zarr"), expected)


def test_an_array_in_memory_is_spilled_beside_a_remote_output(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    source = Input(store=CUBE, dims=DIMS)
    tilewise.run(job(source, Output(store=f"s3://{bucket}/out.zarr", chunks=CHUNKS)))
    np.testing.assert_array_equal(read(f"s3://{bucket}/out.zarr"), local_result(tmp_path))
    left = {key.split("/")[1] for key in s3.objects(bucket, "out.zarr.tilewise")}
    assert left == set(stores.RECORDS)


def test_xarray_in_memory_and_a_local_sidecar(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    import xarray as xr

    data = xr.DataArray(CUBE, dims=DIMS, coords={"row": np.arange(8.0)}, name="x")
    tilewise.run(job(data, Output(store=f"s3://{bucket}/out.zarr", chunks=CHUNKS), sidecar=str(tmp_path / "records")))
    np.testing.assert_array_equal(read(f"s3://{bucket}/out.zarr"), local_result(tmp_path))
    assert sorted(p.name for p in (tmp_path / "records").iterdir()) == stores.RECORDS
    assert not s3.objects(bucket, "out.zarr.tilewise")


def test_a_remote_sidecar_of_a_local_output(bucket: str, tmp_path: Path) -> None:
    source = Input(store=CUBE, dims=DIMS)
    tilewise.run(job(source, Output(store=str(tmp_path / "out.zarr"), chunks=CHUNKS), sidecar=f"s3://{bucket}/records"))
    assert Folder(f"s3://{bucket}/records").names() == stores.RECORDS
    assert not (tmp_path / "out.zarr.tilewise").exists()


def test_overwriting_takes_a_zarr_store_and_nothing_else(s3: S3Server, bucket: str) -> None:
    out = f"s3://{bucket}/out.zarr"
    put(Folder(out), "photos/a.jpg", b"x")
    with pytest.raises(OutputExistsError, match="is no Zarr store"):
        tilewise.run(job(f"s3://{bucket}/in.zarr", out), overwrite=True)
    Folder(out).remove()
    neighbour = Folder(out + "-mine")
    neighbour.write_text("a.txt", "mine")
    tilewise.run(job(f"s3://{bucket}/in.zarr", out))
    put(Folder(out), "norm/c/9/9", b"stale")
    tilewise.run(job(f"s3://{bucket}/in.zarr", out), overwrite=True)
    assert "out.zarr/norm/c/9/9" not in s3.objects(bucket)
    put(Folder(out), "photos/a.jpg", b"x")
    with pytest.raises(OutputExistsError, match="holds other files"):
        tilewise.run(job(f"s3://{bucket}/in.zarr", out), overwrite=True)
    assert s3.objects(bucket, "out.zarr/photos") == {"out.zarr/photos/a.jpg": b"x"}
    assert neighbour.read_text("a.txt") == "mine"


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("s3://b/x.zarr", "s3://b/x.zarr/"),
        ("s3://b/x.zarr", "obstore+s3://b/x.zarr"),
        ("s3://b/x.zarr", "s3a://b//x.zarr/inner"),
        ("s3://b/x.zarr/inner", "s3://b/x.zarr"),
        ("simplecache::s3://b/x.zarr", "s3://b/x.zarr"),
        ("zip::s3://b/x.zip", "s3://b/x.zip/a.zarr"),
    ],
)
def test_two_names_of_one_place_are_the_same_store(source: str, output: str) -> None:
    with pytest.raises(OutputExistsError, match="same store"):
        check_output(Output(store=output), [Input(store=source)], overwrite=True)


@pytest.mark.parametrize(
    ("output", "match"),
    [
        ("https://host/x.zarr", r"only be read \(https\)"),
        ("zip::s3://bucket/x.zip", "only be read"),
        ("simplecache::s3://bucket/x.zarr", "only be read"),
        ("out.zip", r"only be read \(zip\)"),
        ("s3://bucket", "whole bucket"),
        ("s3://bucket/", "whole bucket"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(output: str, match: str) -> None:
    with pytest.raises(UnsupportedStoreError, match=match):
        Output(store=output)
    with pytest.raises(UnsupportedStoreError, match=match.replace("output.store", "sidecar")):
        job("in.zarr", "out.zarr", sidecar=output)


@pytest.mark.parametrize("name", ["", "a\0b", "s3://bucket/a\0b"])
def test_a_name_that_no_place_can_have_is_refused(name: str) -> None:
    for make in (lambda n: Input(store=n), lambda n: Output(store=n), lambda n: job("a", "b", sidecar=n)):
        with pytest.raises(UnsupportedStoreError, match="holds a NUL" if name else "is empty"):
            make(name)


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:{0}@bucket/x.zarr",
        "s3://{0}@bucket/x.zarr",
        "s3://key:{0}/more@bucket/x.zarr",
        "https://host/x.zarr?X-Amz-Signature={0}",
        "obstore+s3://key:{0}@bucket/x",
        "simplecache::https://me:{0}@host:8080/x.zarr",
    ],
)
def test_a_url_with_a_secret_is_refused_without_showing_it(url: str) -> None:
    for make in (lambda u: Input(store=u), lambda u: Output(store=u), lambda u: job("a", "b", sidecar=u)):
        with pytest.raises(UnsupportedStoreError, match="put credentials into the environment") as caught:
            make(url.format(SECRET))
        assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError) as refused:
        config.loads("{kernel: {name: norm, dim: band}, inputs: {x: a}, output: b}", [f"output={url.format(SECRET)}"])
    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "url", ["abfs://container@account.dfs.core.windows.net/x", "https://host:8080/x", "sftp://me@h/x"]
)
def test_a_url_without_a_secret_is_one(url: str) -> None:
    assert Input(store=url).store == url


def test_protocols_that_nothing_here_knows_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedStoreError, match=r"no protocol 'weird'.*such as s3"):
        find("x", Input(store="weird://bucket/x"))
    with pytest.raises(UnsupportedStoreError, match=r"pip install dropboxdrivefs"):
        find("x", Input(store="dropbox://bucket/x"))
    with pytest.raises(UnsupportedStoreError, match="obstore does not open dropbox"):
        find("x", Input(store="obstore+dropbox://bucket/x"))


@pytest.mark.parametrize("scheme", ["s3", "obstore+s3"])
def test_a_bucket_or_key_that_is_not_there(bucket: str, scheme: str) -> None:
    with pytest.raises(MissingStoreError):
        find("x", Input(store=f"{scheme}://{bucket}/no.zarr"))
    with pytest.raises(MissingStoreError):
        find("x", Input(store=f"{scheme}://no-such-bucket/no.zarr"))
    with pytest.raises(MissingStoreError, match="no-such-bucket"):
        tilewise.run(job(f"{scheme}://{bucket}/in.zarr", f"{scheme}://no-such-bucket/out.zarr"))


def test_a_folder_of_remote_stores_names_them(bucket: str) -> None:
    with pytest.raises(MissingStoreError, match=r"in\.zarr"):
        find("x", Input(store=f"s3://{bucket}"))
    assert find("x", Input(store=f"s3://{bucket}", variable="in.zarr/x")).spec.dims == DIMS


def test_a_chained_url(bucket: str, tmp_path: Path) -> None:
    tilewise.run(job(f"simplecache::s3://{bucket}/in.zarr", str(tmp_path / "out.zarr")))
    np.testing.assert_array_equal(read(str(tmp_path / "out.zarr")), local_result(tmp_path))


def test_a_web_server_is_read_and_never_written(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    handler = partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        tilewise.run(job(f"{url}/seed.zarr", str(tmp_path / "out.zarr")))
        with pytest.raises(MissingStoreError):
            find("x", Input(store=f"{url}/other.zarr"))
        server.shutdown()
    np.testing.assert_array_equal(read(str(tmp_path / "out.zarr")), local_result(tmp_path))


class QuietHandler(SimpleHTTPRequestHandler):
    """A web server of a folder without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        return


def test_memory_is_one_process(tmp_path: Path) -> None:
    upload(write(tmp_path / "s.zarr"), "memory://t/in.zarr")
    with pytest.raises(UnsupportedStoreError, match="memory:// lies within one process"):
        tilewise.run(job("memory://t/in.zarr", str(tmp_path / "o.zarr"), "processes"))
    tilewise.run(job("memory://t/in.zarr", "memory://t/out.zarr"))
    np.testing.assert_array_equal(read("memory://t/out.zarr"), local_result(tmp_path))
    Folder("memory://t").remove()


# ---- archives


def archive(folder: Path, target: Path, prefix: str = "") -> str:
    with zipfile.ZipFile(target, "w") as zipped:
        for file in sorted(f for f in folder.rglob("*") if f.is_file()):
            zipped.write(file, prefix + str(file.relative_to(folder)))
    return str(target)


@pytest.mark.parametrize(("name", "kind"), [("s.zip", "processes"), ("archive.zarr", "threads")])
def test_a_zipped_store_is_read(tmp_path: Path, kind: str, name: str) -> None:
    expected = local_result(tmp_path)
    tilewise.run(job(archive(tmp_path / "here.zarr", tmp_path / name), str(tmp_path / "out.zarr"), kind, workers=1))
    np.testing.assert_array_equal(read(str(tmp_path / "out.zarr")), expected)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed by Linux")
def test_an_archive_is_closed_at_the_end(tmp_path: Path) -> None:
    write(tmp_path / "s.zarr")
    path = archive(tmp_path / "s.zarr", tmp_path / "s.zip")
    tilewise.run(job(path, str(tmp_path / "out.zarr")))
    held = {str(link.resolve()) for link in Path("/proc/self/fd").iterdir()}
    assert path not in held


@pytest.mark.parametrize("zipped", [True, False])
def test_a_store_one_level_down(tmp_path: Path, zipped: bool) -> None:
    write(tmp_path / "f" / "data.zarr") if not zipped else write(tmp_path / "s.zarr")
    path = archive(tmp_path / "s.zarr", tmp_path / "s.zip", "data.zarr/") if zipped else str(tmp_path / "f")
    with pytest.raises(MissingStoreError, match=r"stores lie within it; got: .*which holds data\.zarr"):
        find("x", Input(store=path))
    source = find("x", Input(store=path, variable="data.zarr/x"))
    assert (source.spec.dims, source.spec.shape, list(source.coordinates)) == (DIMS, CUBE.shape, ["row"])
    tilewise.run(job(Input(store=path, variable="data.zarr/x"), str(tmp_path / "o.zarr")))
    np.testing.assert_array_equal(read(str(tmp_path / "o.zarr")), local_result(tmp_path))
    with pytest.raises(MissingVariableError):
        find("x", Input(store=path, variable="data.zarr/z"))
    with pytest.raises(MissingStoreError):
        find("x", Input(store=path, variable="other.zarr/x"))


def test_a_store_in_the_wild_zipped_from_its_parent() -> None:
    path = shared("data/zarr_stores/zarrita_v2_data.zipped_from_parent.zarr.zip")
    with pytest.raises(MissingStoreError, match=r"data\.zarr"):
        find("x", Input(store=str(path)))
    source = find("x", Input(store=str(path), variable="data.zarr/1d.contiguous.f4.le", dims=("i",)))
    np.testing.assert_array_equal(source.arrays[0].open()[...], [-1000.5, 0, 1000.5, 0])


@pytest.mark.parametrize("damage", ["cut", "text", "directory"])
def test_a_damaged_archive_is_refused(tmp_path: Path, damage: str) -> None:
    write(tmp_path / "s.zarr")
    path = Path(archive(tmp_path / "s.zarr", tmp_path / "s.zip"))
    data = path.read_bytes()
    broken = {"cut": data[: len(data) // 2], "text": b"hello", "directory": data.replace(b"PK\x01\x02", b"PK\x09\x09")}
    path.write_bytes(broken[damage])
    with pytest.raises(UnsupportedStoreError, match="archive|BadZipFile"):
        find("x", Input(store=str(path)))


def test_a_remote_archive(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    data = Path(archive(tmp_path / "seed.zarr", tmp_path / "s.zip")).read_bytes()
    put(Folder(f"s3://{bucket}"), "s.zip", data)
    tilewise.run(job(f"zip::s3://{bucket}/s.zip", str(tmp_path / "o.zarr")))
    np.testing.assert_array_equal(read(str(tmp_path / "o.zarr")), local_result(tmp_path))


def test_consolidated_metadata_may_be_older_than_the_variable(tmp_path: Path) -> None:
    path = write(tmp_path / "s.zarr")
    with pytest.warns(UserWarning, match="Consolidated"):
        zarr.consolidate_metadata(path)
    zarr.open_group(path, mode="r+", use_consolidated=False).create_array(
        "late", shape=(8,), dtype="f4", dimension_names=("row",)
    )
    assert find("x", Input(store=path, variable="late")).spec.shape == (8,)
    with pytest.raises(MissingVariableError):
        find("x", Input(store=path, variable="never"))


# ---- secrets, failures and what they cost


JOB = """
kernel: {kernel}
inputs: {{x: {source}}}
output: {output}
cluster: {{kind: {kind}, workers: {workers}}}
tile: {{row: 4, column: 4}}
"""


#: A server that has gone stays away: botocore need not ask again and again, for ever longer, before that is told.
AT_ONCE = {"AWS_MAX_ATTEMPTS": "1"}


def command(
    tmp_path: Path,
    environment: Mapping[str, str],
    source: str,
    output: str,
    kind: str = "processes",
    *flags: str,
    kernel: str = "{name: norm, dim: band}",
) -> subprocess.CompletedProcess[str]:
    workers = 1 if kind == "processes" else 2
    (tmp_path / "job.yaml").write_text(
        JOB.format(kernel=kernel, source=source, output=output, kind=kind, workers=workers)
    )
    base = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-m", "tilewise.cli", "run", "job.yaml", *flags],
        cwd=tmp_path,
        env={**base, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_command_line_from_s3_to_s3_tells_no_secret(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    done = command(tmp_path, s3.environment, f"s3://{bucket}/in.zarr", f"s3://{bucket}/out.zarr", "processes", "--json")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(read(f"s3://{bucket}/out.zarr"), local_result(tmp_path))
    objects = s3.objects(bucket)
    assert b'"store": "s3://' in objects["out.zarr.tilewise/job.json"]
    assert not [key for key, data in objects.items() if SECRET.encode() in data]
    assert SECRET not in done.stdout + done.stderr


def test_fsspec_finds_its_options_in_its_own_configuration(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "fsspec"
    folder.mkdir()
    options = {"key": "AKIATILEWISETESTS", "secret": SECRET, "client_kwargs": {"endpoint_url": s3.url}}
    (folder / "conf.json").write_text(json.dumps({"s3": options}))
    environment = {"FSSPEC_CONFIG_DIR": str(folder), "AWS_CONFIG_FILE": os.devnull, "AWS_DEFAULT_REGION": "us-east-1"}
    done = command(tmp_path, environment, f"s3://{bucket}/in.zarr", f"s3://{bucket}/out.zarr", "threads")
    assert done.returncode == 0, done.stderr
    assert not [key for key, data in s3.objects(bucket).items() if SECRET.encode() in data]
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize("scheme", ["s3", "obstore+s3"])
def test_an_endpoint_that_does_not_answer_is_no_hang(s3: S3Server, tmp_path: Path, scheme: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
        environment = {**s3.environment, **AT_ONCE, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed.getsockname()[1]}"}
        done = command(tmp_path, environment, f"{scheme}://bucket/in.zarr", "out.zarr", "threads", "--debug")
    assert done.returncode == 1
    assert f"{scheme}://bucket/in.zarr cannot be reached" in done.stderr
    assert SECRET not in done.stderr
    assert "never awaited" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("scheme", ["s3", "obstore+s3"])
@pytest.mark.parametrize("end", ["input", "output"])
def test_denied_access_says_so(tmp_path: Path, scheme: str, end: str) -> None:
    write(tmp_path / "in.zarr")
    places_ = {"input": (f"{scheme}://bucket/in.zarr", "out.zarr"), "output": ("in.zarr", f"{scheme}://bucket/o.zarr")}
    with serve(tmp_path, {"INITIAL_NO_AUTH_ACTION_COUNT": "0"}) as strict:
        done = command(tmp_path, strict.environment, *places_[end], "threads")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert "credentials, in the environment" in done.stderr


def test_a_server_that_dies_in_the_middle_ends_the_run_and_names_the_tile(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        write(tmp_path / "in.zarr")
        server.make_bucket("bucket")
        kernel = f'{{name: "faults:StopsServer", dim: band, pid: {server.process.pid}, at: {float(CUBE[0, 4, 4])!r}}}'
        environment = {**server.environment, **AT_ONCE, "PYTHONPATH": os.pathsep.join(sys.path)}
        output = "s3://bucket/out.zarr"
        done = command(
            tmp_path, environment, "in.zarr", output, "threads", kernel=f"{kernel}\nretries: 0\nsidecar: side"
        )
    assert done.returncode == 1, done.stderr
    # Whether it is the output or the lock beside it that a tile misses first is chance.
    assert re.search(r"failed: StoreAccessError: s3://bucket/out\.zarr(\.tilewise)? cannot be reached", done.stderr)
    assert "tile" in done.stderr


def test_a_tile_costs_its_chunks_and_a_few_looks(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of its chunk, a write of its chunk, a look at the metadata of each of the two arrays, two at the lock.

    Opening an array costs three looks (one for each name that metadata has); threads that start at the same moment may
    both open it, so a run of two threads has up to three more for each array than another: no tile adds any.
    """
    monkeypatch.setattr(probing, "FEWEST", 1000)  # a probe has requests of its own
    looks = []
    for size in (8, 16):
        tiles = (size // 4) ** 2
        data = np.ones((3, size, size), dtype="float32")
        path = stores.write(tmp_path / f"{size}.zarr", {"x": (DIMS, data)}, chunks=CHUNKS)
        upload(path, f"s3://{bucket}/{size}.zarr")
        before = len(s3.requests())
        tilewise.run(job(f"s3://{bucket}/{size}.zarr", f"s3://{bucket}/{size}.out.zarr"))
        seen = s3.requests()[before:]
        reads = [line for line in seen if line.startswith("GET") and "/x/c/" in line]
        writes = [line for line in seen if line.startswith("PUT") and "/norm/c/" in line]
        assert len(reads) == tiles + 1  # one chunk is read ahead of the run, to try the codecs
        assert len(writes) == tiles
        looks.append(len(seen) - len(reads) - len(writes))
    print(f"{looks[0]} requests beside the chunks for 4 tiles, {looks[1]} for 16")
    assert looks[1] - looks[0] <= 4 * (16 - 4) + 2 * 3


@pytest.mark.parametrize("which", ["in", "out"])
def test_a_remote_store_that_disappears_fails_the_tile(bucket: str, which: str) -> None:
    kernel = Vanishes(dim="band", place=f"s3://{bucket}/{which}.zarr", at=float(CUBE[0, 0, 4]))  # two more tiles follow
    with pytest.raises(TileError, match=r"disappeared|not there"):
        tilewise.run(job(f"s3://{bucket}/in.zarr", f"s3://{bucket}/out.zarr", kernel=kernel, workers=1))


@dataclass(frozen=True, kw_only=True)
class Vanishes(Copy, name="test_vanishes"):
    """Removes a remote store at the cell with the value `at`."""

    place: str
    at: float

    def compute(self, state: Any, fields: Any, out: Any, *, panel: int) -> None:
        super().compute(state, fields, out, panel=panel)
        if (fields["x"] == self.at).any():
            Folder(self.place).remove()
