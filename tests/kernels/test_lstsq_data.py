"""Lstsq on published data and certified values, each at the tolerance of the data's README."""

from __future__ import annotations

import json

import numpy as np
import pytest

from harness import evaluate
from pixelwise import check
from shared_data import shared
from tilewise.fields import Status
from tilewise.kernels.lstsq import Lstsq

NAN = np.nan


def line(n):
    return np.stack([np.ones(n), np.arange(float(n))], 1)


def one(A, b, weights=None):
    """Every diagnostic of one pixel, once it is the oracle's."""
    fields = {"A": (("e", "u"), np.array(A)), "b": (("e",), np.array(b))}
    if weights is not None:
        fields["weights"] = (("e",), np.array(weights))
    return check(fields)


def numbers(values):
    return np.array([[float(v) for v in row] for row in values])


def test_reported_cases():
    cases = {case["id"]: case for case in json.loads((shared("cases") / "reported_inputs.json").read_text())["cases"]}
    case = cases["line-few-valid"]
    fields = {"A": (("e", "u"), numbers(case["inputs"]["A"])), "b": (("x", "e"), numbers(case["inputs"]["b"]))}
    found = check(fields, nan_policy="omit")
    np.testing.assert_allclose(found["solution"].T, numbers(case["expect"]["solution"]), rtol=1e-12)
    assert found["rank"].tolist() == case["expect"]["rank"]
    assert found["n_valid"].tolist() == case["expect"]["n_valid"]
    assert [Status(int(s)).meaning for s in found["status"]] == case["expect"]["status"]
    found = check(fields, nan_policy="omit", min_valid=2)
    assert found["status"].tolist() == [Status.OK, Status.TOO_FEW, Status.NO_DATA]
    assert np.isnan(found["solution"][:, 1]).all()

    found = check({"A": (("e", "u"), line(100)), "b": (("e",), np.full(100, NAN))}, nan_policy="omit")
    assert found["status"] == Status.NO_DATA
    assert np.isnan(found["solution"]).all()

    case = cases["one-gap-keeps-the-pixel"]
    fields = {"A": (("e", "u"), numbers(case["inputs"]["A"])), "b": (("e",), numbers([case["inputs"]["b"]])[0])}
    found = check(fields, nan_policy="omit")
    np.testing.assert_allclose(found["solution"], case["expect"]["solution"], rtol=1e-12)
    assert (found["status"], found["n_valid"]) == (Status.OK, case["expect"]["n_valid"])


def pyrate():
    folder = shared("data/insar_pyrate_linrate")
    read = {n: np.load(folder / f"{n}.npy") for n in ("t_years", "tscuml_0")}
    read |= {n: np.load(folder / f"linear_{n}.npy") for n in ("rate", "intercept", "rsquared", "error", "samples")}
    # The first epoch is the reference: zero everywhere.
    b = np.concatenate([np.zeros((72, 47, 1)), read["tscuml_0"]], -1)
    return np.stack([np.ones(13), read["t_years"]], 1), b, read


def test_rates_of_deformation_of_pyrate():
    A, b, expected = pyrate()
    kernel = Lstsq(dim="e", unknown="u", nan_policy="omit", min_valid=2, diagnostics=("n_valid", "stderr", "r2"))
    found = evaluate(kernel, {"A": (("e", "u"), A), "b": (("y", "x", "e"), b)})
    # Theirs are stored in float32; the tolerance is that of the data's README.
    np.testing.assert_allclose(found["solution"][1], expected["rate"], rtol=0, atol=3e-6)
    np.testing.assert_allclose(found["solution"][0], expected["intercept"], rtol=0, atol=3e-6)
    samples = np.where(np.isnan(expected["samples"]), 1, expected["samples"])
    np.testing.assert_array_equal(found["n_valid"], samples)
    # Rounded to float32, to half a unit of their size.
    several = samples > 2
    np.testing.assert_allclose(found["stderr"][1][several], expected["error"][several], rtol=1e-5)
    np.testing.assert_allclose(found["r2"][several], expected["rsquared"][several], rtol=1e-5, atol=1e-6)


def test_weighted_diffusion_tensors_of_dipy():
    case = np.load(shared("data/dmri_dipy_small64") / "case.npz")
    dims = ("x", "y", "z", "e")
    fields = {
        "A": (("e", "u"), case["design"]),
        "b": (dims, case["log_signal"]),
        "weights": (dims, case["wls_weights_sqrt"] ** 2),
    }
    found = evaluate(Lstsq(dim="e", unknown="u"), fields)
    np.testing.assert_allclose(np.moveaxis(found["solution"], 0, -1), case["dipy_wls"], rtol=0, atol=1e-11)
    assert not found["status"].any()


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("Norris", 1e-11),
        ("Pontius", 1e-10),
        ("NoInt1", 1e-14),
        ("Wampler1", 1e-8),
        ("Wampler2", 1e-8),
        ("Wampler4", 1e-6),
    ],
)
def test_certified_values_of_nist(name, tolerance):
    case = json.loads((shared("data/nist_strd") / f"{name}.json").read_text())
    certified = case["certified"]
    A, y = np.array(case["design_float64"]), np.array(case["y"])
    found = one(A.reshape(len(y), -1), y)
    np.testing.assert_allclose(found["solution"], certified["coef"], rtol=tolerance)
    np.testing.assert_allclose(found["r2"], certified["r2"], rtol=1e-12)
    if certified["residual_sd"] > 0:  # of an exact fit only rounding is left, for which `one` has its bound
        freedom = len(y) - len(found["solution"])
        np.testing.assert_allclose(found["residual_norm"] / np.sqrt(freedom), certified["residual_sd"], rtol=1e-9)
        np.testing.assert_allclose(found["stderr"], certified["std_err"], rtol=1e-9)


def test_credit_card_expenses_of_stata():
    case = json.loads((shared("data/wls_ccard_stata") / "case.json").read_text())
    found = one(case["X"], case["y"], case["weights"])
    np.testing.assert_allclose(found["solution"], case["stata_params"], rtol=1e-9)
    np.testing.assert_allclose(found["stderr"], case["stata_bse"], rtol=1e-9)
    np.testing.assert_allclose(found["residual_norm"] ** 2, case["stata_ssr"], rtol=1e-9)
    np.testing.assert_allclose(found["r2"], case["stata_r2"], rtol=1e-9)


@pytest.mark.parametrize(
    ("folder", "scene", "members", "name"),
    [
        ("unmix_samson", "samson_dataset.mat", "samson_dataset.mat", "M"),
        ("unmix_samson", "samson_dataset.mat", "samson_dataset.mat", "M1"),
        ("unmix_jasper", "jasperRidge2_R198.mat", "end4.mat", "M"),
    ],
)
def test_unmixing_of_published_scenes_with_a_ridge(folder, scene, members, name):
    scipy_io = pytest.importorskip("scipy.io")
    where = shared(f"data/{folder}")
    Y, M = scipy_io.loadmat(where / scene)["Y"], scipy_io.loadmat(where / members)[name]
    found = evaluate(Lstsq(dim="e", unknown="u", ridge=1e-2), {"A": (("e", "u"), M), "b": (("e", "x"), Y)})["solution"]
    # Counts arrive as the uint16 that they are; reflectances are counts / 5000.
    found = found / 5000 if Y.dtype == np.uint16 else found
    np.testing.assert_allclose(found, np.load(where / "expected.npz")[f"RIDGE_{name}"], rtol=0, atol=1e-10)
