"""What people see: progress while a job runs, a plan and a finished run in a few lines, and both as JSON."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from tilewise.fields import FieldSpec

if TYPE_CHECKING:
    from tilewise.job import Job
    from tilewise.outcome import Event, Report

#: Seconds between two lines of progress where there is no terminal.
INTERVAL = 10.0
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


# --- progress


class Progress:
    """Watches a run and says nothing; a context manager, so that a run that fails leaves the terminal in order."""

    def __call__(self, event: Event) -> None:
        """Take note of an event."""

    def close(self) -> None:
        """Leave the terminal in order."""

    def __enter__(self) -> Progress:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()


def progress(*, quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """What to hand to `run(progress=...)`: a bar on a terminal, else a line at the start, every 10 s and at the end.

    Parameters
    ----------
    quiet
        Say nothing.
    stream
        Where to; standard error unless given. A run never fails because nobody listens there.

    >>> from tilewise.outcome import Event
    >>> watch = progress(stream=sys.stdout)
    >>> for event in (Event(0, 8, 0.0, 0), Event(2, 8, 1.0, 1 << 30), Event(8, 8, 4.0, 4 << 30)):
    ...     watch(event)
    tilewise: 0 of 8 tiles
    tilewise: 8 of 8 tiles (100 %) in 4.0 s, 1.00 GiB/s
    """
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:
        return Progress()
    return _Bar(stream) if stream.isatty() else _Lines(stream)


class _Lines(Progress):
    """A line now and then, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = -math.inf

    def __call__(self, event: Event) -> None:
        if event.done == event.total or event.seconds - self._last >= INTERVAL:
            self._last = event.seconds
            with suppress(OSError, ValueError):
                self._stream.write(f"tilewise: {_line(event)}\n")
                self._stream.flush()


def _line(event: Event) -> str:
    text = f"{event.done:,} of {event.total:,} tiles"
    if not event.done:
        return text
    text += f" ({100 * event.done // event.total} %) in {format_seconds(event.seconds)}"
    text += f", {format_rate(event.nbytes, event.seconds)}"
    left = event.seconds * (event.total - event.done) / event.done
    return f"{text}, about {format_seconds(left)} left" if event.done < event.total else text


class _Bar(Progress):
    """A bar of tiles with bytes a second and the time that is left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None

    def __call__(self, event: Event) -> None:
        from tqdm import tqdm

        with suppress(OSError, ValueError):
            if self._bar is None:
                form = "{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} tiles [{elapsed}<{remaining}{postfix}]"
                self._bar = tqdm(
                    total=event.total, initial=event.done, file=self._stream, dynamic_ncols=True, bar_format=form
                )
            self._bar.set_postfix_str(format_rate(event.nbytes, event.seconds), refresh=False)
            self._bar.update(event.done - self._bar.n)
            if event.done == event.total:
                self.close()

    def close(self) -> None:
        if self._bar is not None:
            with suppress(OSError, ValueError):
                self._bar.close()


class _Handler(logging.StreamHandler[TextIO]):
    """Log messages as lines of their own, above a bar that is being drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        with suppress(OSError, ValueError):
            tqdm.write(self.format(record), file=self.stream)


@contextmanager
def logged(*, quiet: bool = False) -> Iterator[None]:
    """Show tilewise's log messages on standard error meanwhile; only errors where `quiet`."""
    log = logging.getLogger("tilewise")
    handler = _Handler(sys.stderr)
    handler.setFormatter(logging.Formatter("tilewise: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


# --- plans and runs


def describe(job: Job, *, client: Any = None) -> dict[str, Any]:
    """A job and its plan as JSON data: what `tilewise plan --json` prints. No data is read, nothing is written.

    Returns
    -------
    dict
        `kernel`: its name and parameters. `inputs` and `outputs`, by name: `store`, `variables`, `dims`, `shape`,
        `dtype`, `chunks` and `shards` (cells, or null), `bytes`; for inputs `shared` (read once a worker) and `decoded`
        (the CF attributes applied to each array), for outputs `packed` (the encoding, or null).
        `workers`: `kind`, `device`. `plan`: `tile_dims`, `grid` (tiles along each), `tile` and `unit` (cells by
        dimension), `tiles`, `block` (tiles a task), `blocks`, `panel` (pixels), `processes`, `slots` (tiles in
        work at a time in each), `memory_limit`, `memory` (bytes of one process: `baseline`, `shared`, and for each
        of `slots` `boxes`, `outputs`, `transient`; `allocator`; `peak`), `read_bytes` (decoded), `needed_bytes`
        (of the inputs), `read_amplification`, `write_bytes`. Keys are only ever added.

    Raises
    ------
    TilewiseError
        As `plan` does.
    """
    from tilewise.job import kernel_dict
    from tilewise.surveys import survey

    found = survey(job, client=client)
    inputs = {
        name: {
            "store": source.arrays[0].store if source.arrays else None,
            "variables": [ref.path for ref in source.arrays],
            **_field(source.spec, source.chunks, source.shard),
            "shared": name in found.work.signature.shared,
            "decoded": [dict(decoding.attrs) if decoding else {} for decoding in source.decodings],
        }
        for name, source in found.work.sources.items()
    }
    outputs = {
        target.spec.name: {
            "store": target.array.store,
            "variables": [target.array.path],
            **_field(target.spec, target.chunks, target.shards),
            "packed": asdict(target.packing) if target.packing else None,
        }
        for target in found.work.targets
    }
    return {
        "kernel": kernel_dict(job.kernel),
        "inputs": inputs,
        "outputs": outputs,
        "workers": {"kind": found.layout.kind, "device": found.layout.device},
        "plan": found.plan.to_dict(),
    }


def _field(spec: FieldSpec, chunks: Sequence[int], shards: Sequence[int] | None) -> dict[str, Any]:
    return {
        "dims": list(spec.dims),
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "chunks": list(chunks),
        "shards": list(shards) if shards else None,
        "bytes": spec.nbytes,
    }


def plan_text(document: Mapping[str, Any]) -> str:
    """What `describe` found, in a few lines."""
    plan, workers = document["plan"], document["workers"]
    name, *parameters = [f"{key}={value}" for key, value in document["kernel"].items() if value not in (None, [])]
    rows = [
        ("kernel", f"{name.removeprefix('name=')}({', '.join(parameters)})"),
        *((f"input {name}", _field_text(item)) for name, item in document["inputs"].items()),
        *((f"output {name}", _field_text(item)) for name, item in document["outputs"].items()),
        ("tiles", f"{plan['tiles']:,}: {_along(plan['tile_dims'], plan['grid'])}"),
        ("tasks", f"{plan['blocks']:,} of {_count(plan['block'], 'tile')}"),
        ("tile", f"{_along(plan['tile'], plan['tile'].values())}; panels of {plan['panel']} pixels"),
        ("workers", _workers_text(plan, workers)),
        ("reads", f"{format_bytes(plan['read_bytes'])}, {plan['read_amplification']:.2f} times the inputs"),
        ("writes", format_bytes(plan["write_bytes"])),
    ]
    return f"{_table(rows)}\nmemory of one process\n{_table(_memory_rows(plan), indent='  ')}"


def _field_text(item: Mapping[str, Any]) -> str:
    text = f"({_along(item['dims'], item['shape'])}) {item['dtype']}, {format_bytes(item['bytes'])}"
    text += f", chunks {_times(item['chunks'])}"
    text += f", shards {_times(item['shards'])}" if item["shards"] else ""
    text += ", read once by each worker" if item.get("shared") else ""
    return text + _packing_text(item)


def _packing_text(item: Mapping[str, Any]) -> str:
    """What lies between the stored numbers and the values, of each array once."""
    packed = item.get("packed")
    if packed:
        keys = ", ".join(f"{key} {value}" for key, value in packed.items() if key != "dtype" and value is not None)
        return f", packed as {packed['dtype']} by {keys}"
    told = [", ".join(f"{key} {value}" for key, value in attrs.items()) for attrs in item.get("decoded", ())]
    return "".join(f", decoded by {attrs}" for attrs in dict.fromkeys(told) if attrs)


def _along(dims: Iterable[str], sizes: Iterable[int]) -> str:
    return ", ".join(f"{dim} {size}" for dim, size in zip(dims, sizes, strict=True)) or "one cell"


def _times(sizes: Iterable[int]) -> str:
    return " x ".join(map(str, sizes)) or "1"


def _workers_text(plan: Mapping[str, Any], workers: Mapping[str, Any]) -> str:
    each = " in each" if plan["processes"] > 1 else ""
    where = f"{_count(plan['processes'], 'process', 'es')} on {workers['device']}"
    return f"{workers['kind']}: {where}, {_count(plan['slots'], 'tile')} at a time{each}"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{plural if number != 1 else ''}"


def _memory_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    memory, slots = plan["memory"], plan["slots"]
    each = f"{slots} x " if slots > 1 else ""
    rows = [("baseline", format_bytes(memory["baseline"])), ("shared inputs", format_bytes(memory["shared"]))]
    rows += [
        ("boxes of inputs", each + format_bytes(memory["boxes"])),
        ("outputs", each + format_bytes(memory["outputs"])),
        ("transient", each + format_bytes(memory["transient"])),
        ("allocator keeps", format_bytes(memory["allocator"])),
        ("predicted peak", f"{format_bytes(memory['peak'])} of a limit of {format_bytes(plan['memory_limit'])}"),
    ]
    return rows


def run_text(report: Report) -> str:
    """What a finished run did, in a few lines."""
    plan, seconds = report.plan, report.seconds
    pixels = ", ".join(f"{count:,} {meaning}" for meaning, count in report.statuses.items())
    rows = [
        ("output", report.output),
        ("tiles", f"{report.tiles:,} in {format_seconds(seconds)}, after {format_seconds(report.startup)} to start"),
        ("read", f"{format_bytes(plan.read_bytes)}, {format_rate(plan.read_bytes, seconds)}"),
        ("written", f"{format_bytes(plan.write_bytes)}, {format_rate(plan.write_bytes, seconds)}"),
        ("phases", ", ".join(f"{name} {format_seconds(spent)}" for name, spent in report.phases.items())),
        *([("pixels", pixels)] if pixels else []),
        *([("misfits", _misfits_text(report.misfits))] if report.misfits else []),
        ("peak", f"{format_bytes(report.peak)} of {format_bytes(plan.memory.peak)} predicted, in one process"),
        *(("warning", text) for text in report.warnings),
    ]
    return _table(rows)


def _misfits_text(count: int) -> str:
    return f"{count:,} values out of the range of a packed output, written as missing"


def _table(rows: Sequence[tuple[str, str]], indent: str = "") -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{indent}{name:{width}}  {text}" for name, text in rows)
