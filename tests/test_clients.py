"""Jobs on real schedulers and workers that somebody else has started: processes of their own on loopback."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

import clusters
import stores
import tasks
import tilewise
from clusters import until
from faults import Copy, DiesAt, FailsAt, Waits
from tilewise.errors import BudgetError, ClusterError, ParameterError, TileError

RNG = np.random.default_rng(11)
CUBE = RNG.standard_normal((3, 20, 30)).astype("float32")
DIMS = ("band", "y", "x")


@pytest.fixture
def shared(workers_of_others: Path) -> Path:
    return workers_of_others


@pytest.fixture
def client(shared: Path) -> Iterator[Client]:
    with Client(scheduler_file=str(shared), set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)
        yield client


def job(folder: Path, kernel: Any = None, output: str = "out.zarr", **options: Any) -> tilewise.Job:
    """A copy of the cube, in nine tiles."""
    source = folder / "in.zarr"
    if not source.exists():
        stores.write(source, {"x": (DIMS, CUBE)}, chunks={"y": 8, "x": 10})
    return tilewise.Job(
        kernel=kernel or Copy(dim="band"),
        inputs={"x": str(source)},
        output=str(folder / output),
        tile={"y": 8, "x": 10},
        **options,
    )


def copied(report: tilewise.Report) -> bool:
    return stores.read(report.output, "copy").tobytes() == CUBE.tobytes()


def on(shared: Path, **options: Any) -> tilewise.Cluster:
    return tilewise.Cluster(kind="address", address=clusters.address(shared), **options)


def state(client: Client) -> dict[str, Any]:
    """What a run may leave behind: on the scheduler, in workers, and in the threads that their tasks run in."""
    there = sorted(client.nthreads())
    found = {
        "settings": client.run(tasks.settings),
        "torch": [client.submit(tasks.torch_threads, pure=False, workers=[w]).result() for w in there for _ in "1234"],
        "plugins": client.run(lambda dask_worker: sorted(dask_worker.plugins)),
        "scheduler": client.run_on_scheduler(lambda dask_scheduler: sorted(dask_scheduler.worker_plugins)),
    }
    until(lambda: not client.run_on_scheduler(tasks.of_runs))
    return found


DOORS = ("address", "scheduler-file", "client", "ambient", "current")


@pytest.mark.parametrize("door", DOORS)
def test_every_door_gives_the_same_bits_and_leaves_nothing_behind(
    tmp_path: Path, shared: Path, client: Client, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    design = stores.write(tmp_path / "A.zarr", {"A": (("band", "p"), RNG.standard_normal((3, 2)))})
    this = replace(job(tmp_path, tilewise.Lstsq(dim="band")))
    this = replace(this, inputs={"A": design, "b": tilewise.Input(store=str(tmp_path / "in.zarr"), variable="x")})
    threads = tilewise.run(replace(this, cluster=tilewise.Cluster(kind="threads"), output=str(tmp_path / "t.zarr")))
    mine = client.submit(lambda: 42, key="somebody's")
    before = state(client)
    options: dict[str, Any] = {"client": client} if door == "client" else {}
    if door == "address":
        this = replace(this, cluster=on(shared))
    if door == "scheduler-file":
        this = replace(this, cluster=tilewise.Cluster(kind="scheduler-file", scheduler_file=str(shared)))
    caplog.set_level(logging.INFO, "tilewise")
    if door == "ambient":
        with Client(scheduler_file=str(shared)) as ambient:
            report = tilewise.run(this)
            assert ambient.status == "running"
    elif door == "current":
        with client.as_current():
            report = tilewise.run(this)
    else:
        report = tilewise.run(this, **options)
    assert ("using the current client" in caplog.text) == (door in ("ambient", "current"))
    for name in ("solution", "status"):
        assert stores.read(report.output, name).tobytes() == stores.read(threads.output, name).tobytes()
    assert (report.plan.processes, report.plan.slots, report.warnings) == (2, 2, ())
    assert 0 < report.peak <= report.plan.memory.peak
    assert client.status == "running"
    assert mine.result() == 42
    assert state(client) == before


def test_a_local_kind_ignores_the_current_client(tmp_path: Path, client: Client) -> None:
    with client.as_current():
        report = tilewise.run(job(tmp_path, cluster=tilewise.Cluster(kind="threads", workers=1)))
    assert report.plan.processes == 1
    assert copied(report)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_within_this_process_work_and_leave_it_as_it_was(tmp_path: Path, workers: int) -> None:
    options = {"n_workers": workers, "threads_per_worker": 2, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        before = state(client)
        report = tilewise.run(job(tmp_path), client=client)
        assert (report.plan.processes, report.plan.slots) == (1, 2 * workers)
        assert copied(report)
        assert state(client) == before
        assert client.submit(lambda: 1).result() == 1


def test_a_plan_asks_the_workers(tmp_path: Path, shared: Path, client: Client) -> None:
    plan = tilewise.plan(job(tmp_path, cluster=on(shared)))
    assert (plan.processes, plan.slots) == (2, 2)
    assert tilewise.plan(job(tmp_path), client=client).grid == plan.grid
    # Measured where the workers are: each has everything loaded.
    assert plan.memory.baseline > 100 << 20
    one = tilewise.plan(job(tmp_path, cluster=on(shared, workers=1, threads=1)))
    assert (one.processes, one.slots) == (1, 1)


def test_only_so_many_workers_and_threads_are_used(tmp_path: Path, shared: Path, client: Client) -> None:
    before = state(client)
    (tmp_path / "go").touch()
    kernel = Waits(
        dim="band", began=str(tmp_path / "b"), go=str(tmp_path / "go"), most=str(tmp_path / "most"), seconds=0.05
    )
    report = tilewise.run(job(tmp_path, kernel, cluster=on(shared, workers=1, threads=1)))
    assert copied(report)
    assert len(report.peaks) == 1
    assert (tmp_path / "most").read_text() == "1"
    assert state(client) == before


def test_a_worker_that_joins_during_the_run_is_set_up_too(tmp_path: Path) -> None:
    kernel = Waits(dim="band", began=str(tmp_path / "began"), go=str(tmp_path / "go"), seconds=0.2)
    with clusters.cluster(tmp_path, 1) as file, Client(scheduler_file=str(file), set_as_default=False) as client:
        client.wait_for_workers(1, timeout=120)
        # The kernel is tried on one pixel before the tiles: that is let through.
        done = _in_a_thread(lambda: tilewise.run(job(tmp_path, kernel), client=client))
        until(lambda: (tmp_path / "began").exists())
        with clusters.worker(file):
            client.wait_for_workers(2, timeout=120)
            until(lambda: all(client.run(tasks.guests).values()))
            (tmp_path / "go").touch()
            report = done()
            assert copied(report)
            assert len(report.peaks) == 2
            found = client.run(tasks.settings)
            assert [(s["zarr"], s["guests"], s["sessions"]) for s in found.values()] == [(10, [], [])] * 2


def _in_a_thread(function: Any) -> Any:
    """Starts it; what comes back gives its result, or raises what it raised."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append((function(), None))
        except BaseException as error:  # noqa: BLE001 - raised again where it is asked for
            found.append((None, error))

    thread = threading.Thread(target=work)
    thread.start()

    def result() -> Any:
        thread.join()
        value, error = found[0]
        if error is not None:
            raise error
        return value

    return result


# Filters of warnings belong to the process: a run that puts them back beside another may let zarr's remark through.
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_two_runs_at_once_restore_once_the_last_has_ended(tmp_path: Path, client: Client) -> None:
    before = state(client)
    slow = Waits(dim="band", began=str(tmp_path / "began"), go=str(tmp_path / "go"))
    first = _in_a_thread(lambda: tilewise.run(job(tmp_path, slow, "slow.zarr"), client=client))
    until(lambda: (tmp_path / "began").exists())
    # Every thread of a worker may wait in the slow run: the quick one is tried beside it, and follows it.
    second = _in_a_thread(lambda: tilewise.run(job(tmp_path, None, "quick.zarr"), client=client))
    until(lambda: all(len(guests) == 2 for guests in client.run(tasks.guests).values()))
    during = client.run(tasks.settings)
    (tmp_path / "go").touch()
    assert copied(first())
    assert copied(second())
    assert {s["zarr"] for s in during.values()} == {2}
    assert {threads for s in during.values() for threads in s["blas"]} == {1}
    assert state(client) == before


# --- what fails


def test_a_failed_or_interrupted_run_leaves_the_client_usable(tmp_path: Path, client: Client) -> None:
    before = state(client)
    with pytest.raises(TileError, match=r"tile \d+ \(y=8:16, x=20:30\) failed"):
        tilewise.run(job(tmp_path, FailsAt(dim="band", at=float(CUBE[0, 9, 25]))), client=client)
    assert state(client) == before

    def stop(event: tilewise.Event) -> None:
        if event.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tilewise.run(job(tmp_path), client=client, overwrite=True, progress=stop)
    assert state(client) == before
    assert copied(tilewise.run(job(tmp_path), client=client, overwrite=True))


def test_the_next_run_takes_away_what_a_killed_client_has_left(tmp_path: Path, shared: Path, client: Client) -> None:
    before, source = state(client), job(tmp_path).inputs["x"].store
    connected = len(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.clients)))
    slow = Waits(dim="band", began=str(tmp_path / "began"), go=str(tmp_path / "go"))
    cluster = tilewise.Cluster(kind="scheduler-file", scheduler_file=str(shared))
    this = tilewise.Job(kernel=slow, inputs={"x": source}, output=str(tmp_path / "killed.zarr"), cluster=cluster)
    killed = clusters.forked(tasks.run, this)
    until(lambda: (tmp_path / "began").exists())
    killed.kill()
    killed.join()
    (tmp_path / "go").touch()
    until(lambda: len(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.clients))) == connected)
    left = client.run_on_scheduler(lambda dask_scheduler: sorted(dask_scheduler.worker_plugins))
    assert any(name.startswith("tilewise-") for name in left)
    assert copied(tilewise.run(job(tmp_path), client=client))
    assert state(client) == before


def test_a_relative_output_is_where_the_client_stands(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tmp_path not in map(Path, client.run(os.getcwd).values())
    relative = replace(job(tmp_path), output=tilewise.Output(store="out.zarr"), inputs={"x": "in.zarr"})
    assert copied(tilewise.run(relative, client=client))


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs look for their workers more often, so that a test need not wait as long."""
    monkeypatch.setattr("tilewise.dask_workers.WATCH", 0.2)


@pytest.mark.usefixtures("watchful")
def test_a_worker_that_dies_is_survived_until_none_is_left(tmp_path: Path) -> None:
    with clusters.cluster(tmp_path, 2) as file, Client(scheduler_file=str(file), set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)
        once = DiesAt(dim="band", once=str(tmp_path / "once"), seconds=0.05)
        assert copied(tilewise.run(job(tmp_path, once), client=client))
        assert len(client.nthreads()) == 1
        until(lambda: not client.run_on_scheduler(tasks.of_runs))
        assert list(client.run(tasks.guests).values()) == [[]]
        # The block kills the last one: Dask alone would have gone on to the next.
        always = job(tmp_path, DiesAt(dim="band", at=float(CUBE[0, 3, 5]), seconds=0.05), cluster=on(file, timeout=1))
        with pytest.raises(ClusterError, match=r"every worker has left .* with --resume"):
            tilewise.run(always, overwrite=True)
        with clusters.worker(file):
            client.wait_for_workers(1, timeout=120)
            assert copied(tilewise.run(job(tmp_path), client=client, overwrite=True))


def test_a_scheduler_that_goes_is_an_error_that_says_so(tmp_path: Path) -> None:
    slow = Waits(dim="band", began=str(tmp_path / "began"), go=str(tmp_path / "go"))
    with clusters.scheduler(tmp_path) as (file, scheduler), clusters.worker(file):
        done = _in_a_thread(lambda: tilewise.run(job(tmp_path, slow, cluster=on(file, timeout=30))))
        until(lambda: (tmp_path / "began").exists())
        scheduler.kill()
        (tmp_path / "go").touch()
        with pytest.raises(ClusterError, match="cannot be reached any more|too few workers|not connected"):
            done()


def test_what_is_not_there_in_time_is_told_with_what_was_expected(tmp_path: Path, shared: Path, client: Client) -> None:
    with pytest.raises(
        ClusterError, match=r"too few workers .* got: 2 within 0.5 s; expected: 3\. .* cluster.wait_for"
    ):
        tilewise.run(job(tmp_path, cluster=on(shared, wait_for=3, timeout="500 ms")))
    with pytest.raises(ClusterError, match="too few workers"):
        tilewise.plan(job(tmp_path, cluster=tilewise.Cluster(workers=3, timeout=0.1)), client=client)
    nobody = tilewise.Cluster(kind="scheduler-file", scheduler_file=str(tmp_path / "none.json"), timeout=0.1)
    with pytest.raises(ClusterError, match=r"no scheduler at .*none.json; got: FileNotFoundError"):
        tilewise.run(job(tmp_path, cluster=nobody))
    (tmp_path / "none.json").write_text("{")
    with pytest.raises(ClusterError, match="not, or not yet, the file of a scheduler"):
        tilewise.run(job(tmp_path, cluster=nobody))
    with pytest.raises(ClusterError, match="no scheduler at tcp://127.0.0.1:1;"):
        tilewise.run(job(tmp_path, cluster=tilewise.Cluster(kind="address", address="tcp://127.0.0.1:1", timeout=0.1)))
    with pytest.raises(ParameterError, match="the address of the scheduler is none"):
        tilewise.run(job(tmp_path, cluster=tilewise.Cluster(kind="address", address="carrier-pigeon://x", timeout=1)))
    assert not (tmp_path / "out.zarr").exists()


def test_clients_that_cannot_be_used_are_refused(tmp_path: Path, shared: Path, client: Client) -> None:
    with pytest.raises(ParameterError, match="client is no client of dask.distributed; got: str"):
        tilewise.run(job(tmp_path), client="tcp://127.0.0.1:1")
    with pytest.raises(ParameterError, match="names other workers; got: cluster.kind threads"):
        tilewise.run(job(tmp_path, cluster=tilewise.Cluster(kind="threads")), client=client)
    with pytest.raises(ParameterError, match="cluster.threads is more than worker .* has; got: 3; expected: at most 2"):
        tilewise.run(job(tmp_path, cluster=tilewise.Cluster(threads=3)), client=client)
    closed = Client(scheduler_file=str(shared), set_as_default=False)
    closed.close()
    with pytest.raises(ClusterError, match="not connected to a scheduler; got: closed"):
        tilewise.run(job(tmp_path), client=closed)
    with pytest.raises(ParameterError, match="cluster.wait_for is about workers that run already"):
        tilewise.run(job(tmp_path, cluster=tilewise.Cluster(wait_for=2)))


def test_an_asynchronous_client_is_refused(tmp_path: Path, shared: Path) -> None:
    import asyncio

    async def main() -> None:
        async with Client(scheduler_file=str(shared), asynchronous=True, set_as_default=False) as client:
            with pytest.raises(ParameterError, match="client is asynchronous"):
                tilewise.run(job(tmp_path), client=client)

    asyncio.run(main())


def test_a_plan_above_the_pause_threshold_of_a_worker_is_refused(tmp_path: Path) -> None:
    options = ("--memory-limit", "300MiB", "--nthreads", "2")
    with clusters.cluster(tmp_path, 1, *options) as file:
        with pytest.raises(BudgetError, match="does not fit worker tcp://127.0.0.1") as caught:
            tilewise.run(job(tmp_path, cluster=on(file), memory_limit="2 GiB"))
        assert "limit of 300 MiB, and no further task above 240 MiB" in caught.value.got
        assert "start workers with a memory limit of at least" in caught.value.do
    assert not (tmp_path / "out.zarr").exists()


# --- versions and places


def test_other_versions_are_reported_or_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with clusters.scheduler(tmp_path) as (file, _):
        info = tmp_path / "metadata" / "xarray-1999.1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xarray\nVersion: 1999.1.0\n")
        with clusters.worker(file, environment=_path(tmp_path / "metadata")):
            report = tilewise.run(job(tmp_path, cluster=on(file)))
        assert copied(report)
        (text,) = report.warnings
        assert text.startswith("worker tcp://127.0.0.1:")
        assert "has xarray 1999.1.0, the client" in text
        assert text in caplog.text
        from tilewise.report import run_text

        assert f"warning  {text}" in run_text(report)

        shutil.copytree(Path(tilewise.__file__).parent, tmp_path / "other" / "tilewise")
        (tmp_path / "other" / "tilewise" / "_version.py").write_text('__version__ = "0.0.9"\n')
        with (
            clusters.worker(file, environment=_path(tmp_path / "other")),
            pytest.raises(ClusterError, match=r"worker tcp.* has another version of tilewise; got: 0.0.9; .* install"),
        ):
            tilewise.run(job(tmp_path, cluster=on(file)), overwrite=True)

        (tmp_path / "without").mkdir()
        (tmp_path / "without" / "sitecustomize.py").write_text(WITHOUT)
        with (
            clusters.worker(file, environment=_path(tmp_path / "without")),
            pytest.raises(ClusterError, match=r"worker tcp.* has no tilewise; .* install tilewise"),
        ):
            tilewise.run(job(tmp_path, cluster=on(file)), overwrite=True)


WITHOUT = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tilewise":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
"""


def _path(first: Path) -> dict[str, str]:
    return {"PYTHONPATH": f"{first}:{clusters.PATH}"}


def test_a_kernel_that_workers_cannot_import_is_named(tmp_path: Path, shared: Path, client: Client) -> None:
    import sys

    (tmp_path / "only_here.py").write_text("from faults import Copy\n\nclass Here(Copy, name='test_here'):\n    pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import only_here

        with pytest.raises(ClusterError, match=r"cannot load what the run needs; got: .*only_here.* install tilewise"):
            tilewise.run(job(tmp_path, only_here.Here(dim="band")), client=client)
    finally:
        sys.path.remove(str(tmp_path))
    assert not (tmp_path / "out.zarr").exists()


def test_a_store_that_a_worker_does_not_see_is_named(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    before = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {hidden} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces can be made here")
    with clusters.scheduler(tmp_path) as (file, _), clusters.worker(file, before=before):
        with pytest.raises(
            ClusterError, match=r"the input .*hidden/in.zarr/x cannot be opened by worker tcp.* on "
        ) as no:
            tilewise.run(job(hidden, cluster=on(file)))
        assert no.value.do == "put it on a file system that all workers see, or use a URL"
        assert not (hidden / "out.zarr").exists()
        this = replace(job(tmp_path, cluster=on(file)), output=str(hidden / "out.zarr"))
        with pytest.raises(
            ClusterError, match="the sidecar beside the output, .*hidden/out.zarr.tilewise cannot be opened by worker"
        ):
            tilewise.run(this)
        zarr.create_group(tmp_path / "out.zarr")
        assert copied(tilewise.run(replace(this, output=str(tmp_path / "out.zarr")), overwrite=True))
