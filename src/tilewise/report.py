"""A plan and a finished run in a few lines, and a job before it runs as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tilewise.fields import FieldSpec
from tilewise.texts import format_bytes, format_rate, format_seconds, table

if TYPE_CHECKING:
    from tilewise.job import Job
    from tilewise.outcome import Report


def describe(job: Job, *, client: Any = None, probe: bool = False) -> dict[str, Any]:
    """A job and its plan as JSON data: what `tilewise plan --json` prints. No data is read, nothing is written.

    With `probe` workers are started, and one does a few tiles into a scratch store, as `tilewise.probe` does.

    Returns
    -------
    dict
        `kernel`: its name and parameters. `inputs` and `outputs`, by name: `store`, `variables`, `dims`, `shape`,
        `dtype`, `chunks` and `shards` (cells, or null), `bytes`; for inputs `shared` (read once a worker) and `decoded`
        (the CF attributes applied to each array), for outputs `packed` (the encoding, or null).
        `workers`: `kind`, `device`. `plan`: `tile_dims`, `grid` (tiles along each), `tile` and `unit` (cells by
        dimension), `tiles`, `block` (tiles a task), `blocks`, `panel` (pixels), `processes`, `slots` (tiles in
        work at a time in each), `read_ahead` (tiles beyond each of these that are read or written meanwhile),
        `memory_limit`, `memory` (bytes of one process: `baseline`, `shared`, and for each of `slots` `boxes`,
        `outputs`, `transient`; `allocator`, which is of two arenas where `settled`, else of one for each slot and
        one more; `peak`), `read_bytes` (decoded), `needed_bytes` (of the inputs), `read_amplification`, `write_bytes`.
        Keys are only ever added.
        With `probe` also `probe`: `tiles`; seconds of one tile, `read`, `compute`, `write`; `waiting`, their share;
        `bound`, what takes most; `decode` and `encode` (seconds of one slot for all); `eta` and `limit` (seconds).

    Raises
    ------
    TilewiseError
        As `plan` does.
    """
    from tilewise.job import kernel_dict
    from tilewise.surveys import survey

    found = survey(job, client=client)
    measured: dict[str, Any] = {}
    if probe:
        from tilewise.runs import probe as do_probe

        plan, seen = do_probe(job, client=client)
        found, measured = replace(found, plan=plan), {"probe": seen.to_dict(plan)}
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
        **measured,
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
        *(_probe_rows(document["probe"]) if "probe" in document else []),
    ]
    return f"{table(rows)}\nmemory of one process\n{table(_memory_rows(plan), indent='  ')}"


def _probe_rows(probe: Mapping[str, Any]) -> list[tuple[str, str]]:
    phases = ", ".join(f"{name} {format_seconds(probe[name])}" for name in ("read", "compute", "write"))
    seconds, limit = format_seconds(probe["eta"]), format_seconds(probe["limit"])
    return [
        ("probe", f"a tile takes: {phases}; {100 * probe['waiting']:.0f} % of it waiting"),
        ("time", f"about {seconds}, most of it {probe['bound']}; {limit} to read all and to write all once"),
    ]


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
    ahead = f", {_count(plan['read_ahead'], 'more', '')} read ahead of each" if plan["read_ahead"] else ""
    return f"{workers['kind']}: {where}, {_count(plan['slots'], 'tile')} at a time{each}{ahead}"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{plural if number != 1 else ''}"


def _memory_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    memory, slots = plan["memory"], plan["memory"]["slots"]
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
    """What a run that has come to its end did, in a few lines."""
    plan, seconds = report.plan, report.seconds
    share = report.tiles / plan.tiles
    read, written = int(share * plan.read_bytes), int(share * plan.write_bytes)
    pixels = ", ".join(f"{count:,} {meaning}" for meaning, count in report.statuses.items())
    peak = f"{format_bytes(report.peak)} of {format_bytes(plan.memory.peak)} predicted, in one process"
    worked = report.resumed < plan.tiles
    rows = [
        ("output", report.output),
        ("tiles", _tiles_text(report)),
        *([("failed", _failed_text(report.failed))] if report.failed else []),
        *([("read", f"{format_bytes(read)}, {format_rate(read, seconds)}")] if worked else []),
        *([("written", f"{format_bytes(written)}, {format_rate(written, seconds)}")] if worked else []),
        *([("phases", _phases_text(report))] if worked else []),
        *([("limit", _limit_text(report))] if report.limit else []),
        *([("retries", f"{report.retries:,}")] if report.retries else []),
        *([("shrunk", f"{_count(report.shrunk, 'tile')} in smaller panels, for lack of memory")] * bool(report.shrunk)),
        *([("pixels", pixels)] if pixels else []),
        *([("misfits", _misfits_text(report.misfits))] if report.misfits else []),
        *([("peak", peak)] if worked else []),
        *(("warning", text) for text in report.warnings),
    ]
    return table(rows)


def _tiles_text(report: Report) -> str:
    if report.resumed == report.plan.tiles:
        return f"all {report.resumed:,} were done before"
    text = f"{report.tiles:,} in {format_seconds(report.seconds)}, after {format_seconds(report.startup)} to start"
    return f"{text}; {report.resumed:,} were done before" if report.resumed else text


def _phases_text(report: Report) -> str:
    return ", ".join(f"{name} {format_seconds(spent)}" for name, spent in report.phases.items())


def _limit_text(report: Report) -> str:
    share = f"{100 * (report.efficiency or 0):.0f} % of the time of the tiles"
    return f"{format_seconds(report.limit or 0)} to read all and to write all once: {share}"


def _failed_text(count: int) -> str:
    return f"{_count(count, 'tile')}: `tilewise info` names them, `tilewise run --resume` tries them again"


def _misfits_text(count: int) -> str:
    return f"{count:,} values out of the range of a packed output, written as missing"
