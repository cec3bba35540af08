"""Make .venv, the environment of the scripts, unless it is there already: standard library only.

`python scripts/_env.py FD` takes a shared lock on an open file descriptor and keeps it, since the shell that opened
the file shares the lock. The environment holds what constraints.txt pins, and a stamp that says from which files it
was made. An environment without its stamp was left half made, and is made anew.

`python scripts/_env.py FD NAME` takes an exclusive lock on an open file descriptor, for whatever has that name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
#: Written first, so that an environment is known to be ours; it holds the key once everything is installed.
STAMP = VENV / "tilewise-stamp"
TRASH = ROOT / ".cache" / "old-environment"
#: What the environment is made from.
FILES = ("pyproject.toml", "constraints.txt", "src/tilewise/_version.py")
UNFINISHED = "unfinished\n"


def main(lock: int) -> int:
    """Leave a whole environment and a shared lock on it; 1 with a message where that cannot be."""
    while True:
        _acquire(lock, fcntl.LOCK_SH, ".venv")
        if _is_whole():
            return 0
        fcntl.flock(lock, fcntl.LOCK_UN)
        _acquire(lock, fcntl.LOCK_EX, ".venv")
        # Whoever had the lock before may have made it; a lock is not downgraded at once, so look again afterwards.
        if not _is_whole() and not _make():
            return 1
        fcntl.flock(lock, fcntl.LOCK_UN)


def _acquire(lock: int, kind: int, name: str) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(f"waiting for another script to let go of {name}")
        fcntl.flock(lock, kind)


def _is_whole() -> bool:
    """Whether the environment was made from the files as they are, by the Python that is asked for."""
    try:
        found = STAMP.read_text()
    except OSError:
        return False
    python = _version(VENV / "bin" / "python")
    wanted = sys.version if os.environ.get("PYTHON") else python
    return python is not None and found == _key(wanted)


def _version(python: Path) -> str | None:
    try:
        done = subprocess.run([python, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def _key(python: str | None) -> str:
    """What the environment depends on: its place, its Python and the files that say what is in it."""
    parts = [str(ROOT), str(python), *((ROOT / name).read_text() for name in FILES)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest() + "\n"


def _make() -> bool:
    if VENV.exists() and any(VENV.iterdir()) and not STAMP.exists():
        _say(".venv was not made by these scripts, so they leave it alone. To mend it: move it away.")
        return False
    _remove()
    VENV.mkdir(exist_ok=True)
    STAMP.write_text(UNFINISHED)
    _say(f"making .venv with Python {sys.version.split()[0]}: a few minutes, once")
    pip = (str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-input")
    steps = (
        (sys.executable, "-m", "venv", str(VENV)),
        (*pip, "--constraint", "constraints.txt", "--editable", ".[test]"),
    )
    for step in steps:
        if subprocess.run(step, cwd=ROOT, stdout=sys.stderr).returncode != 0:
            _say(f"could not make .venv; what failed is: {' '.join(step)}")
            return False
    STAMP.write_text(_key(sys.version))
    return True


def _remove() -> None:
    """Remove the old environment: moved away first, since a half removed one could not be told from a stranger's."""
    shutil.rmtree(TRASH, ignore_errors=True)
    if STAMP.exists():
        VENV.rename(TRASH)
    shutil.rmtree(TRASH, ignore_errors=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _acquire(int(sys.argv[1]), fcntl.LOCK_EX, sys.argv[2])
    else:
        sys.exit(main(int(sys.argv[1])))
