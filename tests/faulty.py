"""A hostile store behind a URL: a real fsspec file system over local files that fails, delays, tears and cuts off.

`faulty:///folder/x.zarr` is the local folder /folder/x.zarr. What goes wrong is told by fsspec's own configuration:
`FSSPEC_FAULTY` in the environment, as JSON, for other processes; `faults(...)` in this one.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import fsspec.config
from fsspec.asyn import AsyncFileSystem


class FaultyFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """Local files, behind faults.

    Parameters
    ----------
    folder
        Local folder of the log of faults, one letter each; and `on`, without which no faults happen.
    fail, late, torn, short
        Chances: that nothing is done and an error comes; that a write is done and an error comes; that half of it is
        written and an error comes; that a read gives less than there is, without an error.
    delay
        Seconds that anything takes at most, so that what is asked for later may be there earlier.
    first
        How often the first requests for each key fail, in each process.
    room
        Writes after which there is no space left.
    seed
        Of the dice, together with the process.
    """

    protocol = "faulty"
    cachable = True

    def __init__(
        self,
        folder: str = "",
        fail: float = 0,
        late: float = 0,
        torn: float = 0,
        short: float = 0,
        delay: float = 0,
        first: int = 0,
        room: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._folder = folder
        self._chances = {"fail": fail, "late": late, "torn": torn, "short": short}
        self._delay, self._first, self._room = delay, first, room
        self._dice = random.Random(f"{seed}-{os.getpid()}")
        self._asked: dict[str, int] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        return str(path).removeprefix("faulty://").rstrip("/")

    def _is_on(self) -> bool:
        return not self._folder or Path(self._folder, "on").exists()

    def _happens(self, kind: str) -> bool:
        if not self._is_on() or self._dice.random() >= self._chances[kind]:
            return False
        self._note(kind)
        return True

    def _note(self, kind: str) -> None:
        if self._folder:
            with Path(self._folder, "log").open("a") as log:
                log.write(kind + "\n")

    async def _ask(self, path: str) -> None:
        if self._delay and self._is_on():
            await asyncio.sleep(self._dice.uniform(0, self._delay))
        count = self._asked[path] = self._asked.get(path, 0) + 1
        if self._is_on() and count <= self._first:
            self._note("first")
            raise ConnectionResetError(f"{path}: reset, time {count}")
        if self._happens("fail"):
            raise TimeoutError(f"{path}: no answer")

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        path = self._strip_protocol(path)
        await self._ask(path)
        found = Path(path).read_bytes()[start:end]
        return found[: self._dice.randrange(len(found))] if found and self._happens("short") else found

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        path = self._strip_protocol(path)
        await self._ask(path)
        if self._room is not None and self._is_on() and not self._takes_room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self._happens("torn"):
            self._put(path, bytes(value)[: len(value) // 2])
            raise ConnectionAbortedError(f"{path}: written in part")
        self._put(path, value)
        if self._happens("late"):
            raise TimeoutError(f"{path}: written, perhaps")

    def _takes_room(self) -> bool:
        """Whether there was room for one more write; counted for all processes."""
        with Path(self._folder, "room").open("ab") as file:
            file.write(b".")
            return file.tell() <= int(self._room or 0)

    def _put(self, path: str, value: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        part = Path(f"{path}.{os.getpid()}.{self._dice.random()}")
        part.write_bytes(value)
        part.replace(path)

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        found = Path(path).stat()
        return {"name": path, "size": found.st_size, "type": "directory" if Path(path).is_dir() else "file"}

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        path = self._strip_protocol(path)
        found = [await self._info(str(child)) for child in sorted(Path(path).iterdir())]
        return found if detail else [info["name"] for info in found]

    async def _rm_file(self, path: str, **options: Any) -> None:
        path = self._strip_protocol(path)
        await self._ask(path)
        Path(path).rmdir() if Path(path).is_dir() else Path(path).unlink()


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


def url(path: Path | str) -> str:
    """The hostile store over a local folder."""
    return f"faulty://{path}"


@contextmanager
def faults(**options: Any) -> Iterator[None]:
    """What goes wrong meanwhile in this process."""
    before = fsspec.config.conf.pop("faulty", None)
    fsspec.config.conf["faulty"] = options
    FaultyFileSystem.clear_instance_cache()
    try:
        yield
    finally:
        del fsspec.config.conf["faulty"]
        if before is not None:
            fsspec.config.conf["faulty"] = before


def environment(folder: Path, /, **options: Any) -> dict[str, str]:
    """Environment of processes that know the file system, as a plugin of fsspec, and what goes wrong in them.

    A folder with the metadata of a package is all that fsspec needs to find it: `folder/plugin`, which has to be on
    the path of processes that are spawned, and so on that of the one that spawns them.
    """
    package = folder / "plugin" / "faulty-1.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[fsspec.specs]\nfaulty = faulty:FaultyFileSystem\n")
    paths = [str(package.parent), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(paths), "FSSPEC_FAULTY": json.dumps(options)}
