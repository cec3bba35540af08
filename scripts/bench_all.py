"""Every benchmark that docs/benchmarks.md tells of, one after the other, and that page.

What each script printed is kept beside the data of the benchmarks, so that `--only` measures some parts anew and leaves
the others as they are. A script that fails does not keep the others from running; its part of the page says so, and
this command ends with 1.

    python scripts/bench_all.py [--only stream kernels] [--arguments stream "--rows 1000 --runs 3"] [--page-only]
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import _page
import _stream

SCRIPTS = Path(__file__).resolve().parent
PAGE = SCRIPTS.parent / "docs" / "benchmarks.md"
PARTS = {
    "stream": "A stream from store to store",
    "kernels": "Kernels alone",
    "scale": "Memory, planning and overhead with the number of tiles",
    "read_ahead": "Reading ahead of a slow store",
}


def script(part: str) -> Path:
    """Where the script of a part is."""
    return SCRIPTS / f"bench_{part}.py"


def kept(part: str) -> Path:
    """Where the result of a part is kept."""
    return _stream.folder() / "results" / f"{part}.json"


def measure(part: str, arguments: Sequence[str]) -> _page.Result:
    """Run the script of a part; what it says of its progress goes to standard error."""
    before, begin = os.getloadavg()[0], time.monotonic()
    done = subprocess.run([sys.executable, str(script(part)), *arguments], stdout=subprocess.PIPE, text=True)
    return _page.Result(
        command=shlex.join(["python", f"scripts/{script(part).name}", *arguments]),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        seconds=time.monotonic() - begin,
        load=(before, os.getloadavg()[0]),
        machine=_page.machine(),
        lines=() if done.returncode else tuple(line.rstrip() for line in done.stdout.strip("\n").splitlines()),
        failure=f"The script ended with {done.returncode}." if done.returncode else "",
    )


def write_page() -> None:
    """Write the page from the results that are kept."""
    results = {part: _page.Result.load_from(kept(part)) if kept(part).exists() else None for part in PARTS}
    PAGE.write_text(_page.page([(title, script(part), results[part]) for part, title in PARTS.items()]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS), help="parts to measure anew")
    parser.add_argument(
        "--arguments", nargs=2, action="append", default=[], metavar=("PART", "TEXT"), help="arguments of its script"
    )
    parser.add_argument("--page-only", action="store_true", help="measure nothing: write the page anew")
    options = parser.parse_args()
    arguments = {part: shlex.split(text) for part, text in options.arguments}
    unknown = set(arguments) - set(PARTS)
    if unknown:
        parser.error(f"--arguments names {sorted(unknown)}, which are no parts; parts are {list(PARTS)}")
    failed = []
    for part in [] if options.page_only else options.only:
        _stream.log(f"{part}: begins")
        result = measure(part, arguments.get(part, []))
        result.save(kept(part))
        failed += [part] if result.failure else []
    write_page()
    _stream.log(f"written: {PAGE.relative_to(SCRIPTS.parent)}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
