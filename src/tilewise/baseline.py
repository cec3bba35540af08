"""What a worker process needs before it holds any data: measured once for a set of versions, then remembered."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewise import access, cf, foreign, hosting, machine, places
from tilewise.errors import ClusterError

log = logging.getLogger("tilewise")

_MEASURE = "{imports}from tilewise.baseline import measure_baseline; print(measure_baseline({remote!r}))"
#: What a kind of worker holds besides what a tile needs.
_IMPORTS = {
    "threads": "import tilewise.cli, tilewise.config, tilewise.runs; ",
    "local": "import dask.array, distributed, distributed.nanny, distributed.worker; ",
}
#: What this process, where it is the worker itself, holds once xarray has described inputs to it.
_XARRAY = "import xarray, dask.array; "


def baseline(kind: str, remote: Sequence[str] = ()) -> int:
    """Bytes of a worker of that kind with everything imported and one warm-up tile done.

    Measured in a fresh process and kept in the user's cache directory, under the versions of every library that
    counts, the platform, and what opens the URLs and files in `remote`.

    Raises
    ------
    ClusterError
        The process that measures failed.
    """
    key = _key(kind, remote)
    known = _load()
    if key in known:
        return known[key]
    log.info("measuring the memory of an idle %s worker (once for these library versions)", kind)
    try:
        measured = _measure(kind, remote)
    except ClusterError:
        if kind != "threads":
            raise
        return measure_baseline(remote)  # what opens a URL may be registered in this process alone
    remember(kind, measured, remote)
    return measured


def measure_baseline(remote: Sequence[str] = (), run: str = "") -> int:
    """Bytes of this process with everything imported and one warm-up tile done; its peak starts anew from here.

    Clients of object stores and engines of xarray are tens of megabytes: the URLs in `remote` are asked for something
    first, and its files are opened. The peak is left alone where another run than `run` watches it.
    """
    importlib.import_module("tilewise.tiles")
    from tilewise.preflight import warm_up

    warm_up()
    access.load(filter(places.is_url, remote))
    for store in remote:
        if not places.is_url(store):
            foreign.load(store)
    value = machine.resident()
    if not hosting.is_host(but=run):
        machine.reset_peak()
    return value


def remember(kind: str, value: int, remote: Sequence[str] = ()) -> None:
    """Keep a measured baseline; a cache that cannot be written is only slower next time."""
    path = _path()
    known = {**_load(), _key(kind, remote): value}
    part = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(known))
        part.replace(path)
    except OSError as error:
        log.warning("the baseline cannot be remembered in %s: %s", path, error)


def _measure(kind: str, remote: Sequence[str]) -> int:
    code = _MEASURE.format(imports=_imports(kind), remote=tuple(remote))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(
            "the memory of an idle worker cannot be measured",
            got=done.stderr.strip().splitlines()[-1:],
            do="run `python -c 'import tilewise.preflight'` and mend what it says",
        )
    return int(done.stdout)


def _imports(kind: str) -> str:
    """Statements that load what a worker holds besides what a tile needs."""
    described = kind == "threads" and "xarray" in sys.modules
    return _IMPORTS.get(kind, "") + (_XARRAY if described else "")


def _key(kind: str, remote: Sequence[str]) -> str:
    facts = [
        kind,
        _imports(kind),
        sorted(map(places.opener, remote)),
        platform.platform(),
        sys.executable,
        sorted(cf.library_versions().items()),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "tilewise" / "baseline.json"


def _load() -> dict[str, int]:
    try:
        found = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if type(value) is int and value > 0}
