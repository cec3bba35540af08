"""Numbers with units."""

from __future__ import annotations

import pytest

from tilewise import texts


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (999 * 1024, "999 KiB"),
        (1000 * 1024, "0.98 MiB"),
        (1 << 50, "1.00 PiB"),
        (5000 << 50, "5000 PiB"),
    ],
)
def test_bytes(count, text):
    assert texts.format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (119.6, "2 min"),
        (3599.7, "1 h"),
        (3661, "1 h 1 min"),
        (86400 * 3 + 3600 * 5 + 59, "3 d 5 h"),
        (86400 + 59, "1 d"),
    ],
)
def test_durations(seconds, text):
    assert texts.format_seconds(seconds) == text


def test_a_rate_without_time_is_none():
    assert texts.format_rate(10, 0.0) == "-"
