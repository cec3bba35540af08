"""One contender of a stream, as a program of its own: its times are the last line that it prints, as JSON.

`begin` and `end` are of the system's monotonic clock: from just before the first input is read to just after the last
output is written, with everything imported and all workers started. Each is given its best: workers are there before it
begins, libraries compute on one thread a worker, and whoever writes no status does not have to.

    python scripts/_peers.py '{"peer": "dask", ...}'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import _bare
from _stream import BANDS, UNKNOWNS, Setup

Array = np.ndarray[Any, Any]
#: Bytes that cubed may plan with in each worker.
CUBED_BYTES = "4GB"


def tilewise_run(setup: Setup) -> dict[str, Any]:
    """Our run: its report says when the first tile began."""
    import tilewise

    b: Any = setup.source if setup.kernel == "lstsq" else tilewise.Input(store=setup.source, variable="b")
    job = tilewise.Job(
        kernel=tilewise.Lstsq(dim="band") if setup.kernel == "lstsq" else tilewise.Norm(dim="band"),
        inputs={"A": setup.library, "b": b} if setup.kernel == "lstsq" else {"x": b},
        output=tilewise.Output(
            store=setup.output, codec=setup.compressors[0] if setup.compressors else "none", chunks=_chunks(setup)
        ),
        cluster=tilewise.Cluster(kind=setup.way, workers=setup.cores),  # type: ignore[arg-type]
        memory_limit="2 GiB",
    )
    called = time.monotonic()
    report = tilewise.run(job, overwrite=True)
    begin = called + report.startup
    return {"begin": begin, "end": begin + report.seconds, "phases": dict(report.phases)}


def _chunks(setup: Setup) -> dict[str, int]:
    return dict(zip(("y", "x"), setup.chunks[-2:], strict=True))


def block(setup: Setup) -> Callable[[Array], Array]:
    """What a user writes for one block (band, y, x): a product, or a norm.

    It imports nothing: that would be timed. Torch takes its one thread from the environment.
    """
    compute = _bare.result_by_hand(setup)
    return lambda b: compute(np.ascontiguousarray(b))


def xarray_dask(setup: Setup) -> dict[str, Any]:
    """`apply_ufunc` on lazy blocks of whole bands, then `to_zarr`."""
    import xarray as xr

    rows, columns = setup.tile
    cube = xr.open_zarr(setup.source, chunks={"band": -1, "y": rows, "x": columns}, consolidated=False)["b"]
    compute = block(setup)
    own = ["unknown"] if setup.kernel == "lstsq" else []

    def bands_last(b: Array) -> Array:  # apply_ufunc puts the bands last, as a view: back, and no byte is moved
        return np.moveaxis(compute(np.moveaxis(b, -1, 0)), 0, -1) if own else compute(np.moveaxis(b, -1, 0))

    result = xr.apply_ufunc(
        bands_last,
        cube,
        input_core_dims=[["band"]],
        output_core_dims=[own],
        dask="parallelized",
        output_dtypes=["float32"],
        dask_gufunc_kwargs={"output_sizes": {"unknown": UNKNOWNS} if own else {}},
    ).transpose(*own, "y", "x")
    encoding = {setup.result: {"chunks": setup.chunks, "compressors": setup.compressors or None}}
    with _dask_workers(setup):
        writing = result.rename(setup.result).to_dataset()
        delayed = writing.to_zarr(setup.output, mode="w", encoding=encoding, compute=False, consolidated=False)
        begin = time.monotonic()
        delayed.compute()
        return {"begin": begin, "end": time.monotonic()}


@contextmanager
def _dask_workers(setup: Setup) -> Iterator[None]:
    if setup.way == "threads":
        import dask

        with dask.config.set(scheduler="threads", num_workers=setup.cores):
            yield
        return
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=setup.cores, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(_import_all)
        yield


def _import_all() -> None:
    import torch  # noqa: F401
    import xarray

    xarray.open_zarr  # noqa: B018 - xarray loads its parts when they are first named


def cubed(setup: Setup) -> dict[str, Any]:
    """`map_blocks` on chunks joined to blocks of whole bands, stored into the arrays that the others write."""
    import cubed as library
    from cubed.core.ops import merge_chunks
    from cubed.runtime.create import create_executor

    spec = library.Spec(allowed_mem=CUBED_BYTES)
    cube = library.from_zarr(setup.source, path="b", spec=spec)
    if setup.tile != cube.chunksize[1:]:
        cube = merge_chunks(cube, (BANDS, *setup.tile))
    own = {"drop_axis": 0} if setup.kernel == "norm" else {"chunks": ((UNKNOWNS,), *cube.chunks[1:])}
    result = library.map_blocks(block(setup), cube, dtype=np.dtype("float32"), **own)
    started = _started()
    executor = create_executor(setup.way, {"max_workers": setup.cores})
    library.store([result], [_bare.create_result(setup)], executor=executor, callbacks=[started])
    end = time.monotonic()
    return {"begin": started.first, "end": end}


def _started() -> Any:
    """Hears from cubed when its first task on data began: it starts workers and creates arrays within the run."""
    from cubed.runtime.types import Callback

    class Started(Callback):  # type: ignore[misc]
        first = float("inf")

        def on_task_end(self, event: Any) -> None:
            if event.name != "create-arrays" and event.function_start_tstamp is not None:
                self.first = min(self.first, event.function_start_tstamp - time.time() + time.monotonic())

    return Started()


PEERS: dict[str, Callable[[Setup], dict[str, Any]]] = {
    "tilewise": tilewise_run,
    "bare": _bare.run,
    "settled": _bare.run,
    "floor": _bare.run,
    "dask": xarray_dask,
    "cubed": cubed,
}


def main() -> None:
    fields = json.loads(sys.argv[1])
    setup = Setup(**{**fields, "tile": tuple(fields["tile"])})
    print(json.dumps(PEERS[setup.peer](setup)))


if __name__ == "__main__":
    main()
