"""A real S3 server on loopback, in a process of its own so that worker processes reach it: moto's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from obstore.store import S3Store

#: What no attribute, file or log may ever hold.
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYsecret"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIATILEWISETESTS", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
_KEYS = {"access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"], "secret_access_key": SECRET}


@dataclass(frozen=True)
class S3Server:
    """A running server: where it is, and the lines of its log, one a request."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def environment(self) -> dict[str, str]:
        """What s3fs and obstore need to find it, and nothing of the user's own configuration."""
        return {
            **CREDENTIALS,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def requests(self) -> list[str]:
        """Method and path of every request so far."""
        return re.findall(r'"(?:\x1b\[\d+m)*((?:GET|PUT|HEAD|POST|DELETE) \S+) HTTP', self.log.read_text())

    def make_bucket(self, name: str) -> None:
        """Create a bucket, by hand: a file system made here would remember this environment."""
        with urlopen(Request(f"{self.url}/{name}", method="PUT")) as answer:
            assert answer.status == 200

    def objects(self, bucket: str, prefix: str = "") -> dict[str, bytes]:
        """Every object of a bucket under a prefix, by key."""
        store = S3Store(bucket, endpoint=self.url, region="us-east-1", client_options={"allow_http": True}, **_KEYS)
        keys = [found["path"] for batch in store.list(prefix or None) for found in batch]
        return {key: bytes(store.get(key).bytes()) for key in keys}

    def stop(self) -> None:
        """End the server at once."""
        self.process.kill()
        self.process.wait()


@contextmanager
def serve(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[S3Server]:
    """A server with no buckets, on a free port; it ends with the block."""
    log = folder / "s3.log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **(environment or {})})
    try:
        yield S3Server(_address(log, process), log, process)
    finally:
        process.kill()
        process.wait()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    while process.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found:
            return found[0]
        time.sleep(0.05)
    raise RuntimeError(f"the S3 server did not start: {log.read_text()}")
