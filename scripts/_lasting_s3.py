"""An S3 server that may be killed and started again: moto's, and a journal of what has been written.

What changes something is on the disk before it is answered, and is done once more when the server starts.

    python scripts/_lasting_s3.py PORT JOURNAL
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from werkzeug.wsgi import get_input_stream

CHANGES = ("PUT", "POST", "DELETE")
_KEPT = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "SERVER_NAME", "SERVER_PORT", "SERVER_PROTOCOL")


class Lasting:
    """A WSGI application behind a journal."""

    def __init__(self, application: Any, journal: Path) -> None:
        self._application = application
        self._journal = journal
        self._lock = threading.Lock()
        self._replay()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in CHANGES:
            return self._application(environ, start_response)
        body = get_input_stream(environ).read()
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        environ["CONTENT_LENGTH"] = str(len(body))
        with self._lock:
            answer = list(self._application({**environ, "wsgi.input": BytesIO(body)}, start_response))
            with self._journal.open("ab") as file:
                pickle.dump((_texts(environ), body), file)
            return answer

    def _replay(self) -> None:
        for texts, body in _entries(self._journal):
            environ = {"wsgi.input": BytesIO(body), "wsgi.errors": sys.stderr, "wsgi.url_scheme": "http"}
            environ |= {"wsgi.version": (1, 0), "wsgi.multithread": True, "wsgi.multiprocess": False}
            list(self._application({**texts, **environ, "wsgi.run_once": False}, lambda *a: None))


def _texts(environ: dict[str, Any]) -> dict[str, str]:
    return {k: v for k, v in environ.items() if k in _KEPT or k.startswith(("HTTP_", "CONTENT_"))}


def _entries(journal: Path) -> Iterator[tuple[dict[str, str], bytes]]:
    if not journal.exists():
        return
    with journal.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except (EOFError, pickle.UnpicklingError):  # the last entry was being written: it was not answered
                return


def _serve(port: int, journal: Path) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    application = Lasting(DomainDispatcherApplication(create_backend_app), journal)
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


class Server:
    """A server on a port of its own, whose objects outlast it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, __file__, str(port), str(folder / "journal")]
        self._log = folder / "s3.log"
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as out:
            process = subprocess.Popen(self._command, stdout=out, stderr=out)
        while process.poll() is None:
            try:
                urlopen(self.url).close()
            except OSError:
                time.sleep(0.05)
            else:
                return process
        raise RuntimeError(self._log.read_text())

    def make_bucket(self, name: str) -> None:
        """Create a bucket."""
        urlopen(Request(f"{self.url}/{name}", method="PUT")).close()

    def restart(self, seconds: float) -> None:
        """Kill the server, and start it again some seconds later."""
        self.kill()
        time.sleep(seconds)
        self._process = self._started()

    def kill(self) -> None:
        """End the server as a crash would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def serve(folder: Path, port: int) -> Iterator[Server]:
    """A server that lasts as long as the block, however often it is killed."""
    server = Server(folder, port)
    try:
        yield server
    finally:
        server.kill()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]))
