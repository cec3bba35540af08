"""A folder of text files and stores, on a disk or behind a URL: the sidecar, and outputs before they are written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from tilewise import places


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
        UnicodeDecodeError
            It is not UTF-8.
        """
        if self.path is not None:
            file = self.path / name
            return file.read_text() if file.is_file() else None
        found = self._call(lambda store: store.get(name, default_buffer_prototype()))
        return None if found is None else found.to_bytes().decode()

    def write_text(self, name: str, text: str) -> None:
        """Write a file at once or not at all; the folder is made where it lacks."""
        if self.path is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            part = self.path / f"{name}.part"
            part.write_text(text)
            part.replace(self.path / name)
            return
        buffer = default_buffer_prototype().buffer.from_bytes(text.encode())
        self._call(lambda store: store.set(name, buffer))

    def remove(self) -> None:
        """Remove it and all that is in it, where it is there."""
        if self.path is None:
            if self.exists():
                self._call(lambda store: store.delete_dir(""))
        elif self.path.exists():
            shutil.rmtree(self.path)

    def remove_if_empty(self) -> None:
        """Remove it where nothing is in it: behind a URL there is then nothing to remove."""
        if self.path is not None and self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _call(self, method: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        with places.reaching(self.place):
            return sync(method(places.zarr_store(self.place, read_only=False)))
