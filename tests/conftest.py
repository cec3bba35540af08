"""Settings of the whole suite, and what several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import clusters
from s3_server import S3Server, serve

# No test is judged by its time: machines are shared.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(scope="session")
def _s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serve(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """An S3 server on loopback, and the environment that finds it; one server for a whole session."""
    for key, value in _s3_server.environment.items():
        monkeypatch.setenv(key, value)
    return _s3_server


@pytest.fixture(scope="session")
def workers_of_others(tmp_path_factory: pytest.TempPathFactory, _s3_server: S3Server) -> Iterator[Path]:
    """The scheduler file of two workers with two threads each, which find the S3 server; tests leave them as they are.

    They are started as anybody would, and load what a run needs when it comes.
    """
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for key, value in _s3_server.environment.items():
                patch.setenv(key, value)
            folder = tmp_path_factory.mktemp("cluster")
            file = stack.enter_context(clusters.cluster(folder, 2, "--nthreads", "2", before=()))
        yield file
