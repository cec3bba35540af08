"""The page of benchmarks: what was measured, on which machine, and how, put together from kept results."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

LIBRARIES = ("tilewise", "torch", "numpy", "zarr", "numcodecs", "dask", "distributed", "xarray", "cubed")

HEAD = """# Benchmarks

Measured on one machine, and good for that one. `python scripts/bench_all.py` measures all of it anew and writes this
page; what stands here was not typed by hand. Each script runs us and what we are compared with in one go, in turns,
and prints medians with the range from the smallest to the largest run. Times on a machine that does other work too
say little: the load before and after each part is given.
"""


@dataclass(frozen=True)
class Result:
    """What one script printed: when, how long it took, and the load of the machine before and after.

    `machine` says where; `lines` are empty where the script failed, which `failure` then says.
    """

    command: str
    date: str
    seconds: float
    load: tuple[float, float]
    machine: Mapping[str, str]
    lines: tuple[str, ...]
    failure: str = ""

    def save(self, path: Path) -> None:
        """Keep it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load_from(cls, path: Path) -> Result:
        """The one that was kept there."""
        fields = json.loads(path.read_text())
        return cls(**{**fields, "load": tuple(fields["load"]), "lines": tuple(fields["lines"])})


def machine() -> dict[str, str]:
    """This machine, by what results depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        **{name: version for name in LIBRARIES if (version := _version(name))},
    }


def _processor() -> str:
    """Model and largest cache, as the system knows them."""
    text = Path("/proc/cpuinfo").read_text()
    found = [re.search(rf"^{key}\s*: (.+)$", text, re.M) for key in ("model name", "cache size")]
    return ", cache ".join(match[1] for match in found if match) or platform.machine()


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def method(script: Path) -> str:
    """How a script measures: its docstring without calls of it, since the page gives the one that was made."""
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"^ *python scripts/.*\n?|^    .*\n?", "", text, flags=re.M)).strip()


def page(sections: Sequence[tuple[str, Path, Result | None]]) -> str:
    """The whole page: title, script and result of each section."""
    parts = [HEAD]
    machines = [dict(result.machine) for _, _, result in sections if result]
    if machines:
        parts.append("## Machine\n\n" + _table(machines[0]))
    for title, script, result in sections:
        parts.append(f"## {title}\n\n{method(script) if script.exists() else ''}\n\n{_told(result, machines)}")
    return "\n".join(re.sub(r"\n{3,}", "\n\n", part) for part in parts)


def _table(values: Mapping[str, str]) -> str:
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in values.items())


def _told(result: Result | None, machines: Sequence[Mapping[str, str]]) -> str:
    if result is None:
        return "Not measured.\n"
    before, after = result.load
    when = f"{result.date}, {result.seconds / 60:.0f} minutes, load {before:.1f} before and {after:.1f} after"
    other = "" if result.machine == machines[0] else "\nOn another machine than the first:\n\n" + _table(result.machine)
    told = "\n".join(result.lines) or result.failure
    return f"`{result.command}`: {when}.\n{other}\n```text\n{told}\n```\n"
