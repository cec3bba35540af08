"""What is known of a run, as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise.ledger_rows import PHASES, meaning
from tilewise.records import TileState
from tilewise.texts import format_rate, format_seconds, table

if TYPE_CHECKING:
    from tilewise.info import Info
    from tilewise.ledger import Totals

#: Failed tiles that are shown; `--json` has more.
SHOWN = 10
_STATES = {
    "starting": "starting: nothing has been written yet",
    "probing": "a few tiles are probed aside",
    "creating": "creating the output",
    "elsewhere": "held by a process that cannot be seen from here",
    "lost": "lost: its process is dead",
}


def info_text(info: Info) -> str:
    """A run in a few lines: its state, its tiles, those that failed, its speed, and what to do next."""
    rows = [
        ("output", info.output),
        ("state", _STATES.get(info.state, info.state)),
        ("run", _run(info)),
        *([("process", _owner(info))] if info.owner else []),
        *([("tiles", _tiles(info))] if info.tiles else []),
        *(_totals_rows(info.totals) if info.totals else []),
        *_speed_rows(info),
        *(("problem", text) for text in info.problems),
        *_failure_rows(info),
        ("next", info.todo),
    ]
    return table(rows)


def _run(info: Info) -> str:
    earlier = len([run for run in info.runs if run != info.run])
    return info.run + (f", resumed after {earlier:,} before" if earlier else "")


def _owner(info: Info) -> str:
    owner = info.owner or {}
    beat = f", last heard of at {owner['heartbeat']}" if owner.get("heartbeat") else ""
    return f"{owner['pid']} on {owner['host']}, since {owner['since']}{beat}"


def _tiles(info: Info) -> str:
    done = info.count(TileState.DONE)
    text = f"{done:,} of {info.tiles:,} done ({100 * done // info.tiles} %)"
    others = [(info.count(state), state.meaning) for state in TileState if state is not TileState.DONE]
    return text + "".join(f", {count:,} {name}" for count, name in others if count)


def _totals_rows(totals: Totals) -> list[tuple[str, str]]:
    spent, whole = dict(zip(PHASES, totals.seconds, strict=True)), sum(totals.seconds)
    pixels = ", ".join(f"{count:,} {meaning(code)}" for code, count in totals.statuses.items())
    rows = []
    if whole:
        shares = (f"{name} {format_seconds(s)} ({100 * s / whole:.0f} %)" for name, s in spent.items())
        rows.append(("time", ", ".join(shares)))
    if pixels:
        rows.append(("pixels", pixels))
    if totals.misfits:
        rows.append(("misfits", f"{totals.misfits:,} values out of the range of a packed output, written as missing"))
    if totals.retried:
        rows.append(("retried", f"{totals.retried:,} tiles were tried more than once"))
    if totals.panel:
        rows.append(("panels", f"down to {totals.panel:,} pixels, for lack of memory"))
    return rows


def _speed_rows(info: Info) -> list[tuple[str, str]]:
    rows = []
    if info.rate is not None:
        left = f", about {format_seconds(info.left)} left" if info.left else ""
        rows.append(("speed", f"{format_rate(info.rate, 1.0)} while at work{left}"))
    if info.state == "finished" and "seconds" in info.report:
        rows.append(("took", f"{format_seconds(info.report['seconds'])}, the last run alone"))
    return rows


def _failure_rows(info: Info) -> list[tuple[str, str]]:
    rows = []
    for failure in info.failures[:SHOWN]:
        cause = (failure.error.splitlines() or ["no cause is known"])[0]
        tried = f", tried {failure.attempts} times" if failure.attempts > 1 else ""
        rows += [(failure.state, f"{failure.region}{tried}: {cause}"), ("", info.replay(failure.number))]
    more = info.failed - min(len(info.failures), SHOWN)
    return [*rows, ("", f"and {more:,} more")] if more > 0 else rows
