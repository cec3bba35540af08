"""Real data that lies beside the repository; tests that need it skip where it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared(name: str) -> Path:
    """Path of a shared file or folder, or a skip with the reason."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"shared data {name!r} is not beside the repository")
    return path
