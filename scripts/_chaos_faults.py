"""Tiles that eat memory, disks that are full, outputs that were damaged afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from _chaos import References, Trial, new_folder, unless
from chaos_scenes import ALL_FILL, TILES, Done, Scene, first_value, number_of

#: Codes of the ledger.
DONE, QUARANTINED = 1, 3
ALLOW = ("--allow", "chaos_kernels")


def guilty(folder: Path, rng: np.random.Generator, kind: str) -> Trial:
    """A tile whose worker is killed whenever it is tried: it is quarantined, and no other."""
    number = _any_tile(rng)
    parameters = {"at": first_value(number)}
    scene = Scene(new_folder(folder), kind=kind, kernel="Eats", parameters=parameters, keys={"on_error": "skip"})
    done = scene.start().wait()
    states = scene.states() if (scene.sidecar / "ledger.zarr").exists() else {}
    wrong = unless(done.code == 3, f"ended with {done.code}, not 3: {done.text[-300:]}")
    wrong += unless(states == {DONE: TILES - 1, QUARANTINED: 1}, f"states of tiles: {states}")
    if scene.output.exists():
        wrong += [f"{cells} cells differ" for cells in [scene.wrong(without=number)] if cells]
    told = scene.tilewise("info")
    wrong += unless(f"--tile {number}" in told.text, f"info does not name tile {number}: {told.text[-300:]}")
    shutil.rmtree(scene.folder)
    return Trial(f"guilty tile, {kind}", tuple(wrong), note=f"(tile {number}, {done.seconds:.1f} s)")


def out_of_memory(folder: Path, references: References, rng: np.random.Generator, kind: str, form: str) -> Trial:
    """Torch finds no memory once, or for any panel but a small one: the run finishes with the same bits."""
    place = new_folder(folder)
    limits = {"once": str(place / "once")} if form == "once" else {"most": 64}
    parameters = {"at": first_value(_any_tile(rng)), **limits}
    scene = Scene(place, kind=kind, kernel="OutOfMemory", parameters=parameters)
    done = scene.start().wait()
    wrong = unless(done.code == 0, f"ended with {done.code}: {done.text[-300:]}")
    wrong += references.compare(scene)
    shutil.rmtree(place)
    return Trial(f"torch out of memory, {form}", tuple(wrong), note=f"({kind})")


def disk_full(folder: Path, references: References, sharded: bool) -> Trial:
    """A small tmpfs with output and sidecar is full in mid-run; what fills it is removed, and the run resumed."""
    part = "disk full"
    place = new_folder(folder)
    disk = place / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        return Trial(part, note="(not tried: no right to mount)")
    try:
        wrong, note = _fill_and_resume(Scene(place / "job", sharded=sharded, place=disk), disk, references)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    shutil.rmtree(place)
    return Trial(part, tuple(wrong), note=note)


def _fill_and_resume(scene: Scene, disk: Path, references: References) -> tuple[list[str], str]:
    filler, room = disk / "filler", 1 << 20
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - room))
    done = scene.start().wait()
    at = scene.written()
    wrong = unless(done.code == 1, f"ended with {done.code}, not 1: {done.text[-300:]}")
    wrong += unless(0 < at < TILES, f"full at {at} of {TILES} units")
    wrong += unless("--resume" in done.text, f"does not say how to go on: {done.text[-300:]}")
    filler.unlink()
    again = scene.start("--resume").wait()
    wrong += unless(again.code == 0, f"--resume ended with {again.code}: {again.text[-300:]}")
    wrong += references.compare(scene)
    wrong += _audited(scene, 0)
    return wrong, f"({'sharded' if scene.sharded else 'chunked'}, full at {at} of {TILES} units)"


Damage = Callable[[Path], None]


def flip(path: Path) -> None:
    """Flip the bits of the byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


#: What is done to a chunk's file.
DAMAGES: dict[str, Damage] = {"flipped byte": flip, "deleted chunk": os.unlink}


def damaged(folder: Path, references: References, rng: np.random.Generator, damage: str, sharded: bool) -> Trial:
    """A whole output, damaged in one chunk: audit names it, --repair mends it, and the bits are as they were."""
    number = _any_tile(rng)
    array = str(rng.choice(["copy", "total", "status"]))
    return _damage(folder, references, f"audit: {damage}", (array, number, sharded), DAMAGES[damage])


def all_fill(folder: Path, references: References, sharded: bool) -> Trial:
    """A chunk of nothing but the fill value is fine while it is there, and missed when it is not."""
    where = ("total", number_of(*ALL_FILL), sharded)
    return _damage(folder, references, "audit: all-fill or unwritten", where, DAMAGES["deleted chunk"])


def _damage(folder: Path, references: References, part: str, where: tuple[str, int, bool], damage: Damage) -> Trial:
    array, number, sharded = where
    scene = Scene(new_folder(folder), kind="threads", sharded=sharded)
    done = scene.start().wait()
    wrong = unless(done.code == 0, f"the run ended with {done.code}: {done.text[-300:]}")
    wrong += _audited(scene, 0)
    row, column = divmod(number, 15)
    key = f"c/0/{row}/{column}" if array == "copy" else f"c/{row}/{column}"
    damage(scene.output / array / key)
    found = _audit(scene)
    wrong += unless(found.code == 3, f"audit ended with {found.code}, not 3: {found.text[-300:]}")
    named = array in found.text and key in found.text
    wrong += unless(named, f"audit does not name {array}/{key}: {found.text[-300:]}")
    before = len(scene.noted())
    mended = _audit(scene, "--repair")
    wrong += unless(mended.code == 0, f"--repair ended with {mended.code}: {mended.text[-300:]}")
    wrong += _audited(scene, 0)
    wrong += references.compare(scene)
    note = f"({array}/{key}, {'sharded' if sharded else 'chunked'}, {len(scene.noted()) - before} tiles computed)"
    shutil.rmtree(scene.folder)
    return Trial(part, tuple(wrong), note=note)


def _audit(scene: Scene, *flags: str) -> Done:
    return scene.tilewise("audit", *ALLOW, *flags)


def _audited(scene: Scene, code: int) -> list[str]:
    done = _audit(scene)
    return unless(done.code == code, f"audit ended with {done.code}, not {code}: {done.text[-300:]}")


def _any_tile(rng: np.random.Generator) -> int:
    """A tile whose first value is its own."""
    while True:
        number = int(rng.integers(TILES))
        if number != number_of(*ALL_FILL):
            return number
