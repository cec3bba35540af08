"""A folder of text files and stores, on a disk or behind a URL: the sidecar, and outputs before they are written."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import ObjectStore

from tilewise import access, places
from tilewise.errors import StoreAccessError, StoreFullError

#: Seconds after which the last of several writers of one new file behind a URL is known.
SETTLE = 1.0
#: Files that a process writes before it renames them: ours, and those of zarr's LocalStore. A kill leaves them.
_PARTIAL = re.compile(r"\.[0-9a-f]{32}\.(part|partial)$")
#: Device, number, size and times of a file.
Stamp: TypeAlias = tuple[int, int, int, int, int]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT)
#: Some file systems have no links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
#: Threads of one process take turns in making files behind URLs.
_TURN = threading.Lock()


@dataclass(frozen=True)
class Folder:
    """A folder by its place. Behind a URL a folder is there when anything is in it.

    >>> folder = Folder("memory://example").child("records")
    >>> folder.write_text("job.json", "{}")
    >>> folder.names(), folder.read_text("job.json"), str(folder)
    (['job.json'], '{}', 'memory://example/records')
    >>> folder.remove()
    >>> folder.exists()
    False
    """

    place: str

    def __str__(self) -> str:
        """The place."""
        return self.place

    @property
    def path(self) -> Path | None:
        """The local path; None behind a URL."""
        return None if places.is_url(self.place) else Path(self.place)

    def child(self, name: str) -> Folder:
        """The folder of that name within."""
        return Folder(f"{self.place.rstrip('/')}/{name}")

    def is_file(self) -> bool:
        """Whether a file is where the folder is to be; behind URLs there may be both."""
        return self.path is not None and self.path.exists() and not self.path.is_dir()

    def exists(self) -> bool:
        """Whether the folder, or anything else, is there."""
        return bool(self.names()) if self.path is None else self.path.exists()

    def names(self) -> list[str]:
        """Names of what is in it, sorted; none where it is not there."""
        if self.path is not None:
            return sorted(child.name for child in self.path.iterdir()) if self.path.is_dir() else []

        async def listed(store: Store) -> list[str]:
            return [name.rstrip("/") async for name in store.list_dir("")]

        return sorted({name for name in self._call(listed) if name})

    def read_text(self, name: str) -> str | None:
        """Text of a file in it; None where it is not there.

        Raises
        ------
        StoreAccessError
            It may not be read.
        UnicodeDecodeError
            It is not UTF-8.
        """
        if self.path is not None:
            try:
                return (self.path / name).read_text(encoding="utf-8")
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
            except PermissionError as error:
                raise StoreAccessError(
                    f"{self.path / name} cannot be read", got=error.strerror, do="give leave to read it"
                ) from error
        found = self._call(lambda store: store.get(name, default_buffer_prototype()))
        return None if found is None else found.to_bytes().decode()

    def stamp(self, name: str) -> Stamp | None:
        """What is another whenever a file of it has been replaced; None where it is not there, or behind a URL.

        The file is opened for it: a network file system answers a mere look out of its cache.
        """
        if places.is_url(self.place):
            return None
        try:
            file = os.open(f"{self.place}/{name}", os.O_RDONLY)
        except OSError:
            return None
        try:
            found = os.fstat(file)
        finally:
            os.close(file)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def write_text(self, name: str, text: str) -> None:
        """Write a file at once or not at all; the folder is made where it lacks.

        Raises
        ------
        StoreAccessError
            It may not be written.
        StoreFullError
            There is no space left for it.
        """
        if self.path is not None:
            file = self.path / name
            with _writing(file):
                _finish(file, text, lambda part: part.replace(file))
            return
        buffer = default_buffer_prototype().buffer.from_bytes(text.encode())
        self._call(lambda store: store.set(name, buffer))

    def create_text(self, name: str, text: str, *, sleep: Callable[[float], object] = time.sleep) -> bool:
        """Write a file that is not there yet, whole; whether it was this call that made it.

        Of several callers at once exactly one has made it. `text` must be one that no other caller writes. Where a
        library behind a URL cannot write exclusively, the last writer has made it, which is known after a pause: a
        caller that needs longer than the pause from looking to writing is not seen.

        Raises
        ------
        StoreAccessError
            It may not be written.
        StoreFullError
            There is no space left for it.
        """
        if self.path is not None:
            with _writing(self.path / name):
                return _create(self.path / name, text)
        with _TURN:
            if self.read_text(name) is not None:
                return False
            buffer = default_buffer_prototype().buffer.from_bytes(text.encode())
            self._call(lambda store: store.set_if_not_exists(name, buffer))
        if places.protocols(self.place) != ("memory",) and not self._is_exclusive():
            sleep(SETTLE)
        return self.read_text(name) == text

    def _is_exclusive(self) -> bool:
        """Whether a file is made by one request that fails where it is there."""
        return isinstance(access.zarr_store(self.place, read_only=True), ObjectStore)

    def remove_text(self, name: str) -> None:
        """Remove a file in it, where it is there."""
        if self.path is not None:
            with _writing(self.path / name):
                (self.path / name).unlink(missing_ok=True)
            return
        if self.read_text(name) is not None:  # file systems differ in what they say of a file that has gone
            self._call(lambda store: store.delete(name))

    def remove(self) -> None:
        """Remove it and all that is in it, where it is there."""
        if self.path is None:
            if self.exists():
                self._call(lambda store: store.delete_dir(""))
        elif self.path.exists():
            with _writing(self.path):
                shutil.rmtree(self.path)

    def remove_if_empty(self) -> None:
        """Remove it where nothing is in it: behind a URL there is then nothing to remove."""
        if self.path is None:
            return
        try:
            self.path.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                raise

    def _call(self, method: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        with access.reaching(self.place):
            return sync(method(access.zarr_store(self.place, read_only=False)))


def is_partial(name: str) -> bool:
    """Whether a file of that name is one that was to be renamed when it is whole.

    >>> is_partial("0." + 32 * "a" + ".partial"), is_partial("zarr.json"), is_partial("my.part")
    (True, False, False)
    """
    return _PARTIAL.search(name) is not None


def stale_partials(folder: Folder) -> Iterator[Path]:
    """Files under a local folder that were to be renamed when whole, one after the other; none behind a URL.

    Those of a writer that is at work are among them: who removes them must hold the lock.
    """
    if folder.path is not None and folder.path.is_dir():
        yield from _partials(folder.path)


def _partials(path: Path) -> Iterator[Path]:
    # Entries are looked at as they come: a folder may hold millions.
    try:
        entries = os.scandir(path)
    except FileNotFoundError:  # an orphan of another run may still remove what it made
        return
    with entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _partials(Path(entry.path))
            elif is_partial(entry.name):
                yield Path(entry.path)


def remove_partials(folder: Folder) -> int:
    """Remove `stale_partials` of a folder; how many there were."""
    count = 0
    for path in stale_partials(folder):
        with _writing(path):
            path.unlink(missing_ok=True)
        count += 1
    return count


def _finish(file: Path, text: str, finish: Callable[[Path], object]) -> None:
    """Write text under a name of its own, on the disk, and let `finish` make it the file; it goes otherwise."""
    for last in (False, False, True):
        part = file.with_name(f"{file.name}.{uuid.uuid4().hex}.part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with part.open("x", encoding="utf-8") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(opened.fileno())  # else a power cut may leave the new name with nothing behind it
            finish(part)
            return
        except FileNotFoundError:  # a run has just taken its empty folder away, or cleaned it of what was not renamed
            if last:
                raise
        finally:
            part.unlink(missing_ok=True)


def _create(file: Path, text: str) -> bool:
    try:
        _finish(file, text, lambda part: os.link(part, file))
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_in_place(file, text)
    return True


def _create_in_place(path: Path, text: str) -> bool:
    """As `_create` where there are no links: a reader may see the file before it is whole."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say by name that a place may not be written, or is full.

    Raises
    ------
    StoreAccessError, StoreFullError
        The system has refused to write.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(
                f"there is no space left to write {path}", got=error.strerror, do="free some, then go on with --resume"
            ) from error
        if error.errno in _REFUSED:
            raise StoreAccessError(
                f"{path} cannot be written",
                got=error.strerror,
                expected="a folder to write in",
                do="give leave to write there, or set sidecar to another place",
            ) from error
        raise
