"""Bytes, durations and rates as people read them, and rows of names and values."""

from __future__ import annotations

from collections.abc import Iterable

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(count: float) -> str:
    """Bytes as a person reads them, to three digits.

    >>> format_bytes(512), format_bytes(1536), format_bytes(5_000_000_000)
    ('512 B', '1.50 KiB', '4.66 GiB')
    """
    power = 0
    # 999.5 is the first to be rounded to four digits.
    while count >= 999.5 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    digits = 0 if power == 0 or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f} {_UNITS[power]}"


def format_seconds(seconds: float) -> str:
    """A duration as a person reads it: two units at most.

    >>> format_seconds(0.0123), format_seconds(3.21), format_seconds(75), format_seconds(7325)
    ('12 ms', '3.2 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts = ((whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s"))
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def format_rate(nbytes: float, seconds: float) -> str:
    """Throughput as a person reads it.

    >>> format_rate(3 << 20, 2.0)
    '1.50 MiB/s'
    """
    return f"{format_bytes(nbytes / seconds)}/s" if seconds > 0 else "-"


def table(rows: Iterable[tuple[str, str]], indent: str = "") -> str:
    """Names and what is said of them, line by line; names are padded to one width.

    >>> print(table([("tiles", "12"), ("peak", "1 GiB")]))
    tiles  12
    peak   1 GiB
    """
    found = list(rows)
    width = max(len(name) for name, _ in found)
    return "\n".join(f"{indent}{name:{width}}  {text}" for name, text in found)
