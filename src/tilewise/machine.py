"""What this process and this machine have: memory, peaks, cores, and the allocator's settings."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from tilewise.errors import ParameterError

#: Freed memory beyond this goes back to the system; below it is kept, so that a tile does not fault its pages in
#: again. 64 MiB holds the temporaries of a tile's chunks.
TRIM_THRESHOLD = 64 << 20
#: Arenas of the allocator of a worker process: its first, and one for the threads in which zarr decodes and encodes.
ARENAS = 2
#: Largest value that glibc accepts: allocations below it are taken from the heap and reused, those above are mapped.
MMAP_THRESHOLD = 32 << 20
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Share of the available memory that a job takes unless it is told.
DEFAULT_SHARE = 0.6


def cores() -> int:
    """Cores that this process may use: affinity and cgroup quota respected."""
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def process_name() -> str:
    """Host and process: who did a block."""
    return f"{socket.gethostname()}:{os.getpid()}"


def parse_bytes(value: int | str, name: str) -> int:
    """Bytes from a number or a text such as "1.5 GiB" or "800MB".

    Raises
    ------
    ParameterError
        It is neither, or not positive.

    >>> parse_bytes("2 GiB", "memory_limit"), parse_bytes(1000, "memory_limit")
    (2147483648, 1000)
    """
    from dask.utils import parse_bytes as dask_parse_bytes

    try:
        # A unit alone would be one of it.
        count = int(dask_parse_bytes(value)) if any(c.isdigit() for c in str(value)) else 0
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        count, reason = 0, str(error)
    else:
        reason = repr(value)
    if count <= 0 or isinstance(value, bool):
        raise ParameterError(
            f"{name} is not a number of bytes", got=reason, expected='such as "2 GiB" or 800000000', do=f"mend {name}"
        )
    return count


def available_memory() -> int:
    """Bytes that can still be had: what the system or the cgroup has left, whichever is less."""
    return min(_system_available(), _cgroup_available())


def _system_available() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


#: Where the kernel says which cgroups this process is in, and where they are.
_MEMBERSHIP, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
#: Of a cgroup, in versions 2 and 1: its limit, its usage, and among its statistics cached files that can be dropped.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _cgroup_available() -> int:
    """What the cgroup of this process has left, or one that it is in, whichever is less."""
    return min((_left(folder) for folder in _memory_cgroups()), default=sys.maxsize)


def _memory_cgroups() -> Iterator[Path]:
    """The cgroups that this process is in, from the inside out; those that a container does not see are left out."""
    lines = _MEMBERSHIP.read_text().splitlines() if _MEMBERSHIP.exists() else ["0::/"]
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _CGROUPS / "memory" if controllers else _CGROUPS
        inner = root / path.lstrip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root) and folder.is_dir())


def _left(cgroup: Path) -> int:
    for limit, usage, reclaimable in _CGROUP_FILES:
        try:
            most = (cgroup / limit).read_text().strip()
            if not most.isdigit():  # "max"
                return sys.maxsize
            statistics = (line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
            cached = {key: int(value) for key, value in statistics}.get(reclaimable, 0)
            return max(0, int(most) - int((cgroup / usage).read_text()) + cached)
        except OSError:  # of the other version, or the outermost one, which has no limit; or not for our eyes
            continue
    return sys.maxsize


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return _status("VmRSS:") or peak()


def peak() -> int:
    """Largest resident size of this process so far, or since `reset_peak`."""
    found = _status("VmHWM:")
    if found:
        return found
    import resource

    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def reset_peak() -> bool:
    """Start the peak of this process anew; whether the platform could."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(key: str) -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    for line in status.read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


def die_with_parent() -> None:
    """Have the system end this process when the one that started it ends, however it does (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def set_allocator() -> bool:
    """Give glibc's allocator thresholds that suit tiles; whether there is such an allocator.

    Workers of dask.distributed start with a trim threshold of 64 KiB, which returns every freed chunk to the
    system and faults its pages in again with the next one.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_THRESHOLD, MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, TRIM_THRESHOLD), (_M_ARENA_MAX, ARENAS))
    accepted = [mallopt(parameter, value) for parameter, value in settings]
    return all(accepted)
