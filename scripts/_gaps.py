"""Synthetic gaps: which values of a stack (date, y, x) are there, as True."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import ndimage

Array = np.ndarray[Any, Any]


def at_random(rng: np.random.Generator, shape: tuple[int, int, int], share: float) -> Array:
    """Every value is missing with that probability: nearly every pixel has gaps of its own."""
    return rng.random(shape) >= share


def by_block(
    rng: np.random.Generator, shape: tuple[int, int, int], block: tuple[int, int], patterns: int, share: float
) -> Array:
    """Whole dates are missing in whole blocks of pixels: as many patterns as `patterns`, in turn."""
    dates, rows, columns = shape
    choices = rng.random((patterns, dates)) >= share
    grid = -(-rows // block[0]), -(-columns // block[1])
    number = rng.permutation(np.arange(grid[0] * grid[1]) % patterns).reshape(grid)
    whole = np.repeat(np.repeat(number, block[0], axis=0), block[1], axis=1)[:rows, :columns]
    return np.ascontiguousarray(np.moveaxis(choices[whole], -1, 0))


def clouds(rng: np.random.Generator, shape: tuple[int, int, int], size: float) -> Array:
    """Blobs about `size` pixels across, others on each date, that cover up to six tenths of it.

    Smooth noise is cut at a level: its blobs are about as wide as four standard deviations of what smoothed it.
    """
    there = np.empty(shape, bool)
    for date in range(shape[0]):
        noise = ndimage.gaussian_filter(rng.standard_normal(shape[1:], np.float32), size / 4, mode="wrap")
        there[date] = noise >= np.quantile(noise, rng.uniform(0, 0.6))
    return there


def missing_dates(rng: np.random.Generator, shape: tuple[int, int, int], frame: int, share: float) -> Array:
    """Frames of so many columns, as of satellite tracks, that each lack some dates whole."""
    frames = -(-shape[2] // frame)
    there = rng.random((shape[0], frames)) >= share
    return np.broadcast_to(np.repeat(there, frame, axis=1)[:, None, : shape[2]], shape).copy()
