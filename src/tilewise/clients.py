"""From the spec of a cluster to its workers: which client, whether its workers will do, and their numbers.

A client that is opened here is closed here; one that was given, or is the current one of this process, is left as it
was, and so is every cluster that somebody else has started.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilewise import inspection
from tilewise.cluster import REMOTE, Cluster, Device, Layout, resolve
from tilewise.dask_workers import open_remote, told
from tilewise.errors import ClusterError, ParameterError
from tilewise.local_cluster import open_local
from tilewise.plugin import Terms
from tilewise.pools import open_processes, open_threads
from tilewise.workers import Workers

log = logging.getLogger("tilewise")


@dataclass(frozen=True)
class Site:
    """Where a job's workers are: their numbers, what there is to say about them, and how to open them for a run."""

    layout: Layout
    open: Callable[[str], AbstractContextManager[Workers]]
    warnings: tuple[str, ...] = ()


@contextmanager
def reach(
    cluster: Cluster, device: Device = "cpu", client: Any = None, remote: Sequence[str] = (), nbytes: int = 0
) -> Iterator[Site]:
    """Find the workers of a cluster: those of a scheduler are connected to, local ones are not started yet.

    Parameters
    ----------
    client
        A distributed Client to use, whatever the current one is; it is not closed.
    remote
        URLs that workers will open, which costs them memory before any tile.
    nbytes
        Bytes that the job reads and writes: what the kind of local workers is chosen by.

    Raises
    ------
    ParameterError
        The client is asynchronous, or contradicts the cluster.
    ClusterError
        There is no such scheduler, too few workers have joined in time, or one of them cannot do the job.
    """
    client = _chosen(cluster, client)
    if client is not None:
        yield _remote(cluster, device, client, "client", time.monotonic() + cluster.seconds, remote)
    elif cluster.kind in REMOTE:
        deadline = time.monotonic() + cluster.seconds
        with _connected(cluster, deadline) as own:
            yield _remote(cluster, device, own, cluster.kind, deadline, remote)
    else:
        _refuse_waiting(cluster)
        layout = resolve(cluster, device, nbytes)
        yield Site(layout, partial(open_workers, layout))


@contextmanager
def open_workers(layout: Layout, run: str) -> Iterator[Workers]:
    """Local workers of a layout, set up; closed, and every setting of this process restored, at the end."""
    opener = {"threads": open_threads, "processes": open_processes, "local": open_local}[layout.kind]
    with opener(layout, run) as workers:
        yield workers


# --- which client


def _chosen(cluster: Cluster, client: Any) -> Any:
    """The client that was given, or the one that dask.compute would use; None where the cluster says otherwise."""
    if client is None:
        return _ambient() if cluster.kind == "auto" else None
    from distributed import Client

    if not isinstance(client, Client):
        raise ParameterError(
            "client is no client of dask.distributed", got=type(client).__name__, do="give a distributed.Client"
        )
    if client.asynchronous:
        raise ParameterError(
            "client is asynchronous, and a run waits for its results",
            got=client,
            do="give a client made with asynchronous=False",
        )
    if cluster.kind != "auto":
        raise ParameterError(
            "client is given, and cluster.kind names other workers",
            got=f"cluster.kind {cluster.kind}",
            expected="cluster.kind auto",
            do="leave out one of the two",
        )
    return client


def _ambient() -> Any:
    if "distributed" not in sys.modules:  # then there is none, and importing it takes a second
        return None
    import dask.base
    from distributed import Client

    try:
        owner = getattr(dask.base.get_scheduler(), "__self__", None)
    except (RuntimeError, ValueError):  # dask's own configuration names a scheduler that is not there
        return None
    if not isinstance(owner, Client) or owner.asynchronous:
        return None
    log.info("using the current client, %s: set cluster.kind for other workers", owner.scheduler.address)
    return owner


def _refuse_waiting(cluster: Cluster) -> None:
    for name in ("wait_for", "timeout"):
        if getattr(cluster, name) is not None:
            raise ParameterError(
                f"cluster.{name} is about workers that run already, and there is no client",
                got=f"cluster.kind {cluster.kind}",
                do=f"leave cluster.{name} out, or set cluster.kind to " + " or ".join(REMOTE),
            )


@contextmanager
def _connected(cluster: Cluster, deadline: float) -> Iterator[Any]:
    """A client of the scheduler that the cluster names, once it answers."""
    from distributed import Client
    from distributed.versions import VersionMismatchWarning

    client, reason, waiting = None, "", False
    while client is None:
        try:
            address = cluster.address or _address(str(cluster.scheduler_file))
            left = max(0.5, min(5.0, deadline - time.monotonic()))
            with warnings.catch_warnings():  # versions are compared by name later
                warnings.simplefilter("ignore", VersionMismatchWarning)
                client = Client(address, timeout=left, set_as_default=False)
        except OSError as error:
            reason = f"{type(error).__name__}: {error}"
        except ValueError as error:
            raise ParameterError(
                "the address of the scheduler is none",
                got=f"{address!r}: {error}",
                expected="such as tcp://host:8786",
                do=f"mend cluster.{'address' if cluster.address else 'scheduler_file'}",
            ) from error
        if client is None and time.monotonic() >= deadline:
            raise ClusterError(
                f"there is no scheduler at {cluster.address or cluster.scheduler_file}",
                got=reason,
                expected=f"an answer within {cluster.seconds:g} s",
                do="check that it runs and can be reached from here, or raise cluster.timeout",
            )
        if client is None:
            if not waiting:
                log.info("waiting up to %g s for a scheduler: %s", cluster.seconds, reason)
            waiting = True
            time.sleep(0.2)
    try:
        yield client
    finally:
        client.close()


def _address(file: str) -> str:
    """The address in a scheduler file, which may still be about to be written."""
    try:
        return str(json.loads(Path(file).read_text())["address"])
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{file} is not, or not yet, the file of a scheduler") from error


# --- workers that run already


def _remote(cluster: Cluster, device: Device, client: Any, kind: str, deadline: float, remote: Sequence[str]) -> Site:
    if client.status != "running":
        raise ClusterError("the client is not connected to a scheduler", got=client.status, do="make a new client")
    with told(client):
        workers = _present(cluster, client, deadline)
        found = _versions(client, workers)
        for text in found:
            log.warning(text)
        facts = client.run(inspection.ask, device != "cpu", tuple(remote), workers=workers)
    layout = inspection.lay_out(kind, facts, cluster.threads, device)
    terms = Terms(
        threads=cluster.threads or max(fact.nthreads for fact in facts.values()),
        only=frozenset(workers) if cluster.workers else None,
        numbers=inspection.cuda_numbers(facts) if layout.device == "cuda" else None,
    )
    return Site(layout, partial(open_remote, client, terms, cluster.seconds), found)


def _present(cluster: Cluster, client: Any, deadline: float) -> list[str]:
    """Addresses of the workers that the run begins with, once enough of them have joined."""
    wanted = cluster.wait_for or cluster.workers or 1
    while True:
        there = sorted(client.nthreads())
        if len(there) >= wanted:
            return there[: cluster.workers]
        if time.monotonic() >= deadline:
            raise ClusterError(
                "too few workers have joined the scheduler",
                got=f"{len(there)} within {cluster.seconds:g} s",
                expected=f"{wanted}",
                do="start more workers, lower cluster.wait_for (or cluster.workers), or raise cluster.timeout",
            )
        time.sleep(0.1)


def _versions(client: Any, workers: list[str]) -> tuple[str, ...]:
    """What differs between the workers' libraries and ours; what cannot be worked with is refused."""
    answers = client.get_versions(packages=inspection.LIBRARIES)
    everyone = {f"worker {w}": answers["workers"][w] for w in workers if w in answers["workers"]}
    everyone = {"the scheduler": answers["scheduler"], **everyone}
    packages = {who: inspection.packages(answer["packages"]) for who, answer in everyone.items()}
    inspection.check_pythons({who: found["python"] for who, found in packages.items()})
    asker = inspection.version_asker()
    # The scheduler loads the graph of a window, and so tilewise too.
    tilewises = {f"worker {w}": version for w, version in client.run(asker, workers=workers).items()}
    inspection.check_tilewise({"the scheduler": client.run_on_scheduler(asker), **tilewises})
    return inspection.version_warnings(packages)
