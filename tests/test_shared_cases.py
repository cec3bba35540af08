"""Published data streamed from store to store: the same answers as the kernels give in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import shared_data
import stores
import tilewise


@pytest.fixture(scope="module")
def wind(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, np.ndarray]]:
    """ERA-Interim wind, decoded to a plain Zarr, and its exact speeds."""
    folder = shared_data.shared("data/wind_eraint_packed")
    path = tmp_path_factory.mktemp("wind") / "plain.zarr"
    with xr.open_dataset(folder / "eraint_uvz.nc", mask_and_scale=False) as packed:
        fields = {n: (packed[n].dims, decoded(packed[n])) for n in ("u", "v")}
        for dim in packed["u"].dims:
            fields[dim] = ((dim,), packed[dim].values)
    chunks = {"latitude": 100, "longitude": 200, "month": 1, "level": 2}
    return stores.write(path, fields, chunks=chunks), dict(np.load(folder / "expected.npz"))


def decoded(variable: xr.DataArray) -> np.ndarray:
    """Values of a packed variable in float64."""
    return variable.values * float(variable.attrs["scale_factor"]) + float(variable.attrs["add_offset"])


def packed(folder: Path, form: str) -> Path:
    """The data as it is published, or the same stored numbers and attributes in a Zarr store."""
    source = shared_data.shared("data/wind_eraint_packed") / "eraint_uvz.nc"
    if form == "netcdf":
        return source
    with xr.open_dataset(source, decode_cf=False) as data:
        fields = {n: (data[n].dims, data[n].values) for n in ("u", "v", *data["u"].dims)}
        attrs = {n: {k: getattr(v, "tolist", lambda v=v: v)() for k, v in data[n].attrs.items()} for n in fields}
    chunks = {"latitude": 100, "longitude": 200, "month": 1, "level": 2}
    zarr_format = int(form[-1])
    return Path(stores.write(folder / "packed.zarr", fields, chunks=chunks, attrs=attrs, zarr_format=zarr_format))


@pytest.mark.parametrize("form", ["netcdf", "zarr v2", "zarr v3"])
def test_wind_speed_of_packed_numbers(tmp_path: Path, form: str) -> None:
    path = packed(tmp_path, form)
    job = tilewise.Job(
        kernel=tilewise.Norm(dim="component"),
        inputs={"x": tilewise.Input(store=path, variables=("u", "v"), stack="component")},
        output=tilewise.Output(store=tmp_path / "speed.zarr", chunks={"latitude": 100, "longitude": 200}),
    )
    tilewise.run(job)
    speed = stores.read(job.output.store, "norm")
    assert speed.dtype == "float64"
    check(speed, dict(np.load(shared_data.shared("data/wind_eraint_packed") / "expected.npz")))


def check(speed: np.ndarray, expected: dict[str, np.ndarray]) -> None:
    """4000 speeds known exactly, at the tolerance of the data's README; the largest one too."""
    exact = expected["speed_exact_f64"]
    np.testing.assert_allclose(speed[tuple(expected["index"].T)], exact, rtol=0, atol=1e-12)
    assert abs(speed.max() - expected["max_speed"]) <= 1e-8  # printed with eight decimals


@pytest.mark.parametrize("tile", ["auto", {"latitude": 100, "longitude": 200, "level": 2, "month": 1}])
def test_wind_speed_of_two_stacked_variables(tmp_path: Path, wind: tuple[str, dict], tile: object) -> None:
    path, expected = wind
    job = tilewise.Job(
        kernel=tilewise.Norm(dim="component"),
        inputs={"x": tilewise.Input(store=path, variables=("u", "v"), stack="component")},
        output=str(tmp_path / "speed.zarr"),
        tile=tile,  # type: ignore[arg-type]
        cluster=tilewise.Cluster(kind="threads"),
    )
    tilewise.run(job)
    with xr.open_zarr(job.output.store, chunks=None) as result:
        speed = result["norm"].values
        assert result["norm"].dims == ("month", "level", "latitude", "longitude")
        assert "longitude" in result.coords
    check(speed, expected)


def fitted(tmp_path: Path, fields: dict, kernel: tilewise.kernels.Kernel, chunks: dict[str, int]) -> dict:
    """Outputs of a job from store to store, several tiles of it."""
    inputs = {n: stores.write(tmp_path / f"{n}.zarr", {n: field}, chunks=chunks) for n, field in fields.items()}
    job = tilewise.Job(
        kernel=kernel,
        inputs=inputs,
        output=tilewise.Output(store=tmp_path / "fit.zarr", chunks=chunks),
        tile=chunks,
        cluster=tilewise.Cluster(kind="threads", workers=2),
    )
    tilewise.run(job)
    return {n: stores.read(job.output.store, n) for n in ("solution", "status", *kernel.diagnostics)}


def test_harmonics_of_the_sea_and_nothing_on_land(tmp_path: Path) -> None:
    folder = shared_data.shared("data/sst_nan_harmonic")
    expected = dict(np.load(folder / "expected.npz"))
    with xr.open_dataset(folder / "sst.mnmean.nc") as data:
        sst = data["sst"].values.astype("float64")
    fields = {"A": (("time", "term"), expected["design"]), "b": (("time", "lat", "lon"), sst)}
    kernel = tilewise.Lstsq(dim="time", nan_policy="omit", diagnostics=("n_valid",))
    found = fitted(tmp_path, fields, kernel, {"lat": 30, "lon": 60})
    np.testing.assert_allclose(found["solution"], expected["coef"], rtol=0, atol=1e-8)
    np.testing.assert_array_equal(found["n_valid"], expected["valid_count"])
    np.testing.assert_array_equal(found["status"] == tilewise.Status.NO_DATA, expected["valid_count"] == 0)


def test_rates_of_deformation_with_gaps(tmp_path: Path) -> None:
    folder = shared_data.shared("data/insar_pyrate_linrate")
    t, rest, rate = (np.load(folder / f"{n}.npy") for n in ("t_years", "tscuml_0", "linear_rate"))
    b = np.concatenate([np.zeros((72, 47, 1)), rest], -1)  # the first epoch is the reference
    fields = {"A": (("date", "term"), np.stack([np.ones(13), t], 1)), "b": (("y", "x", "date"), b)}
    kernel = tilewise.Lstsq(dim="date", nan_policy="omit", min_valid=2)
    found = fitted(tmp_path, fields, kernel, {"y": 30, "x": 30})
    np.testing.assert_allclose(found["solution"][1], rate, rtol=0, atol=3e-6)
    np.testing.assert_array_equal(found["status"] == tilewise.Status.TOO_FEW, np.isnan(rate))
