"""An audit, and a tile that was replayed, in a few lines."""

from __future__ import annotations

from tilewise.findings import Audit, Finding
from tilewise.replay import Replay
from tilewise.texts import format_bytes, format_seconds, table


def audit_text(found: Audit) -> str:
    """What an audit found: sums, then every finding that is kept, then the commands that mend them.

    >>> print(audit_text(Audit("out.zarr", 8, 8, 16, 2048, (3, 5), 7, {}, ())))
    output      out.zarr
    tiles       8 of 8 done
    units       16 write units decoded, 2.00 KiB
    recomputed  tiles 3, 5 (--seed 7)
    findings    none
    """
    many = sum(found.counts.values())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items())
    rows = [
        ("output", found.output),
        ("tiles", f"{found.done:,} of {found.tiles:,} done"),
        *([("repaired", f"{found.repaired:,} tiles done again, and audited again")] if found.repaired else []),
        ("units", f"{found.units:,} write units decoded, {format_bytes(found.nbytes)}"),
        ("recomputed", _tiles_text(found)),
        *(("note", note) for note in found.notes),
        ("findings", f"{many:,}: {kinds}" if many else "none"),
        *(("", _finding_text(finding)) for finding in found.findings),
        *([("", f"and {many - len(found.findings):,} more")] if many > len(found.findings) else []),
        *(("to mend", command) for command in dict.fromkeys(f.mend for f in found.findings if f.mend)),
    ]
    return table(rows)


def _tiles_text(found: Audit) -> str:
    numbers = ", ".join(map(str, found.recomputed[:_SHOWN]))
    more = f" and {len(found.recomputed) - _SHOWN} more" if len(found.recomputed) > _SHOWN else ""
    return f"tiles {numbers}{more} (--seed {found.seed})" if numbers else "no tile"


#: Numbers of recomputed tiles that are shown.
_SHOWN = 20


def _finding_text(finding: Finding) -> str:
    tile = "" if finding.tile is None else f"tile {finding.tile} ({finding.region})"
    where = ", ".join(filter(None, (tile, finding.key or finding.array)))
    return f"{finding.kind}: {where}: {finding.what}" if where else f"{finding.kind}: {finding.what}"


def replay_text(found: Replay) -> str:
    """What a replayed tile gave.

    >>> print(replay_text(Replay("out.zarr", 3, "y=0:8", "failed", error="ArithmeticError: found 7")))
    output  out.zarr
    tile    3 (y=0:8), failed in the run
    error   ArithmeticError: found 7
    """
    read, computed = found.seconds
    pixels = ", ".join(f"{count:,} {meaning}" for meaning, count in found.statuses.items())
    what = f"{found.tile} ({found.region})" if found.region else str(found.tile)
    rows = [("output", found.output), ("tile", f"{what}, {found.state} in the run")]
    if found.error:
        return found.details + table([*rows, ("error", found.error)])
    rows += [
        ("seconds", f"read {format_seconds(read)}, compute {format_seconds(computed)}"),
        *([("pixels", pixels)] if pixels else []),
        *([("misfits", f"{found.misfits:,} values out of the range of a packed output")] if found.misfits else []),
        *(("differs", text) for text in found.differences),
    ]
    if found.state == "done" and not found.differences:
        rows.append(("stored", "the same bits"))
    return table(rows)
