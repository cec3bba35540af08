"""An S3 server, moto's, on a port of its own, that answers every request some milliseconds late.

python scripts/_slow_s3.py PORT MILLISECONDS
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen


def _serve(port: int, milliseconds: float) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    application = DomainDispatcherApplication(create_backend_app)

    def late(environ: dict[str, Any], start_response: Any) -> Any:
        time.sleep(milliseconds / 1000)
        return application(environ, start_response)

    MotoRequestHandler.protocol_version = "HTTP/1.1"  # connections are kept, as a real server does
    run_simple("127.0.0.1", port, late, threaded=True, request_handler=MotoRequestHandler)


@contextmanager
def serve(port: int, milliseconds: float, bucket: str) -> Iterator[None]:
    """A server with an empty bucket; what is opened meanwhile finds it by the environment."""
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, __file__, str(port), str(milliseconds)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None and not _answers(url):
                time.sleep(0.1)
            urlopen(Request(f"{url}/{bucket}", method="PUT")).close()
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            os.environ.update({"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1", **dict.fromkeys(names, "x")})
            yield
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        urlopen(url).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    _serve(int(sys.argv[1]), float(sys.argv[2]))
