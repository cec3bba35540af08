"""The schema for editors: it takes what `config.loads` takes, and refuses what that refuses for its structure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import contract
import tilewise
from tilewise import config
from tilewise.config.document import Document
from tilewise.config.json_schema import json_schema
from tilewise.config.template import template
from tilewise.descriptions import describe, parameters
from tilewise.errors import ConfigError, UnknownKernelError
from tilewise.kernels import Kernel

ROOT = Path(__file__).resolve().parents[2]
BUILT_IN = [name for name, cls in Kernel.registered().items() if cls.__module__.startswith("tilewise.kernels.")]
EXAMPLES = contract.examples()


def valid(text: str, name: str | None = None) -> bool:
    """Whether the schema takes a job file."""
    schema = json_schema(name)
    return bool(jsonschema.Draft202012Validator(schema).is_valid(Document.parse(text, "job").value))


def loads(text: str) -> bool:
    """Whether `config.loads` does."""
    try:
        config.loads(text)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("name", [None, *BUILT_IN, "user_kernels:Everything", "user_kernels:Odd"])
def test_it_is_a_schema(name: str | None) -> None:
    schema = json_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for found in re.findall(r"'\$ref': '#/\$defs/([^']+)'", str(schema)):
        assert found in schema["$defs"]


# --- what is right


def pages() -> list[Any]:
    found = [pytest.param(path.read_text(), id=path.name) for path in sorted((ROOT / "configs").glob("*.yaml"))]
    for page in ("README.md", "docs/jobs.md"):
        blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
        found += [pytest.param(block, id=f"{page}-{i}") for i, block in enumerate(blocks)]
    return found


@pytest.mark.parametrize("text", pages())
def test_job_files_of_the_repository_are_valid(text: str) -> None:
    assert valid(text)
    assert loads(text)


@pytest.mark.parametrize("name", [*BUILT_IN, "user_kernels:Everything", "user_kernels:Total"])
def test_what_init_writes_is_valid_once_it_is_filled_in(name: str) -> None:
    text = template(name)
    assert not valid(text)
    filled = text.replace(":  # required: str", ": filled")
    uncommented = re.sub(r"^( *)#(\w+: .*)$", r"\1\2", filled, flags=re.M)
    for one in (filled, uncommented):
        assert valid(one)
        assert valid(one, name)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.kernel.name)
def test_what_dump_writes_is_valid(example: contract.Example) -> None:
    inputs = {n: tilewise.Input(store=f"{n}.zarr", variable="v") for n in example.fields}
    output = tilewise.Output(store="o.zarr", chunks={"y": 5}, codec={"name": "gzip"}, attrs={"norm": {"units": "m"}})
    for job in (
        tilewise.Job(kernel=example.kernel, inputs=inputs, output="o.zarr"),
        tilewise.Job(kernel=example.kernel, inputs=inputs, output=output, tile={"y": 5}, memory_limit="1 GiB"),
    ):
        assert valid(config.dump(job))
        assert valid(config.dump(job), example.kernel.name)


# --- what is right and wrong, by both

JOB = """\
kernel: {name: "user_kernels:Everything", dim: band}
inputs: {x: cube.zarr}
output: out.zarr
"""
LSTSQ = JOB.replace("user_kernels:Everything", "lstsq")


def key(text: str) -> str:
    """The job with a key more."""
    return JOB + text + "\n"


def kernel(text: str, base: str = JOB) -> str:
    """The job with a parameter more."""
    return base.replace("dim: band", f"dim: band, {text}")


def inputs(text: str) -> str:
    return JOB.replace("x: cube.zarr", text)


def output(text: str) -> str:
    return JOB.replace("output: out.zarr", f"output: {text}")


BOTH = [
    key(""),
    key("tile: auto"),
    key("tile: {y: 3}"),
    key("tile: big"),
    key("tile: {y: three}"),
    key("tile: {y: 2.5}"),
    key("tile: {y: 2.0}"),
    key("tile:"),
    key("memory_limit: 3000000"),
    key("memory_limit: 2 GiB"),
    key("memory_limit:"),
    key("memory_limit: [1]"),
    key("memory_limit: true"),
    key("device: gpu"),
    key("device: auto"),
    key("sidecar: 3"),
    key("clutser: {}"),
    key("cluster: threads"),
    key("cluster: {}"),
    key("cluster: {workers: null, threads: 2.0}"),
    key("cluster:"),
    key("cluster: {kind: threads, workers: 2, threads: 1}"),
    key("cluster: {kind: thread}"),
    key("cluster: {workers: two}"),
    key("cluster: {workers: true}"),
    key("cluster: {nodes: 2}"),
    JOB.replace("output: out.zarr\n", ""),
    JOB.replace("inputs: {x: cube.zarr}\n", ""),
    JOB.replace("user_kernels:Everything", "norm"),
    LSTSQ,
    JOB.replace('{name: "user_kernels:Everything", dim: band}', "norm"),
    JOB.replace('{name: "user_kernels:Everything", dim: band}', "3"),
    JOB.replace('{name: "user_kernels:Everything", dim: band}', "{dim: band}"),
    JOB.replace("user_kernels:Everything", "nrom"),
    LSTSQ.replace(", dim: band", ""),
    LSTSQ.replace("dim: band", "dmi: band"),
    LSTSQ.replace("dim: band", "dim: 3"),
    kernel("rcond: 1e-3", LSTSQ),
    kernel("rcond: null", LSTSQ),
    kernel("rcond: small", LSTSQ),
    kernel("precision: float32", LSTSQ),
    kernel("precision: float16", LSTSQ),
    kernel("diagnostics: [rank]", LSTSQ),
    kernel("diagnostics: rank", LSTSQ),
    kernel("diagnostics: [ranks]", LSTSQ),
    inputs(""),
    inputs("x: {store: cube.zarr, variable: v}"),
    inputs("x: {store: cube.zarr, vairable: v}"),
    inputs("x: {variable: v}"),
    inputs("x: 5"),
    inputs("x: [a.zarr]"),
    inputs("x: null"),
    inputs("x: {store: 5}"),
    inputs("x: {store: cube.zarr, variables: [u, v], stack: c}"),
    inputs("x: {store: cube.zarr, variables: u, stack: c}"),
    inputs("x: {store: cube.zarr, dims: [y, 1]}"),
    JOB.replace("{x: cube.zarr}", "[cube.zarr]"),
    output(
        "{store: o.zarr, chunks: {y: 5}, shards: null, dtype: null, codec: {name: gzip}, attrs: {total: {units: m}}}"
    ),
    output("{chunks: {y: 5}}"),
    output("{store: o.zarr, chunks: [5]}"),
    output("{store: o.zarr, shards: {y: 1.5}}"),
    output("{store: o.zarr, chunks: null}"),
    output("{store: o.zarr, attrs: {total: m}}"),
    output("{store: o.zarr, codec: 3}"),
    output(""),
]


@pytest.mark.parametrize("text", BOTH)
def test_schema_and_loader_agree(text: str) -> None:
    assert valid(text) == loads(text)


def test_the_table_has_both() -> None:
    assert min(sum(map(loads, BOTH)), sum(not loads(text) for text in BOTH)) >= 20


PARAMETERS = [
    ("factor: inf", True),
    ("factor: -.inf", True),
    ("factor: -Infinity", True),
    ("factor: '3'", False),
    ("orders: [1, inf, .inf]", True),
    ("orders: [one]", False),
    ("count: 2e3", True),
    ("count: inf", False),
    ("exact: yes", False),
    ("mode: safe", True),
    ("mode: slow", False),
    ("label: 3", True),
    ("label: 1.5", False),
    ("table: {a: inf}", True),
    ("table: {a: b}", False),
    ("window: 4", True),
    ("window: {width: 4, taper: inf}", True),
    ("window: {tapir: 1}", False),
    ("window: {}", False),
    ("window: null", False),
    ("other: null", True),
    ("other: 3", True),
    ("other: wide", False),
    ("unknown: 1", False),
]


@pytest.mark.parametrize(("text", "right"), PARAMETERS)
def test_the_schema_of_one_kernel_knows_its_parameters(text: str, right: bool) -> None:
    """Of a kernel that somebody brings too: only `--kernel` can know them."""
    assert valid(kernel(text), "user_kernels:Everything") == loads(kernel(text)) == right
    assert valid(kernel(text))


#: What the loader refuses beyond its structure, and why no schema made of types can.
VALUES = {
    "bytes are parsed": key("memory_limit: three"),
    "a count starts at 1, which a type does not say": key("cluster: {workers: 0}"),
    "two keys contradict each other": key("cluster: {kind: processes, threads: 2}"),
    "two keys need each other": inputs("x: {store: cube.zarr, variables: [u]}"),
    "a size starts at 1": output("{store: o.zarr, chunks: {y: 0}}"),
    "dtypes are known to the library": output("{store: o.zarr, dtype: float99}"),
    "a kernel refuses a value": kernel("factor: 0"),
    "a module has to be there": JOB.replace("user_kernels:", "nowhere:"),
    "a kernel of one's own is known by importing it": kernel("fcator: 1"),
}


@pytest.mark.parametrize("why", VALUES)
def test_values_are_for_the_loader_alone(why: str) -> None:
    assert valid(VALUES[why])
    assert not loads(VALUES[why])


# --- what an editor shows


def test_descriptions_and_defaults_are_those_of_the_classes() -> None:
    schema = json_schema()
    for cls, found in (
        (tilewise.Job, schema),
        *((c, schema["$defs"][c.__name__]) for c in (tilewise.Input, tilewise.Output, tilewise.Cluster)),
        *((Kernel.registered()[name], schema["$defs"][name]) for name in BUILT_IN),
    ):
        assert found["description"] == describe(cls).summary
        for one in parameters(cls):
            assert found["properties"][one.name]["description"] == one.text
            assert ("default" in found["properties"][one.name]) != one.required
            assert (one.name in found["required"]) == one.required
    assert schema["properties"]["device"]["enum"] == ["auto", "cpu", "cuda"]
    assert schema["$defs"]["lstsq"]["properties"]["deficient"]["enum"] == ["min_norm", "nan"]


def test_a_class_in_a_list_has_no_short_form() -> None:
    """Though it has one where it stands alone."""
    odd = JOB.replace("Everything", "Odd")
    for text, right in [
        ("start: 3", True),
        ("start: {width: 3, taper: inf}", True),
        ("start: {width: 3, tapir: 1}", False),
        ("start: 3, windows: [{width: 3, taper: inf}]", True),
        ("start: 3, windows: [3]", False),
        ("start: 3, codes: [1, 2]", True),
        ("start: 3, function: abs", False),
        ("start: 3, anything: [abs]", True),
    ]:
        assert valid(kernel(text, odd), "user_kernels:Odd") == loads(kernel(text, odd)) == right, text


def test_a_kernel_without_a_schema_is_refused() -> None:
    with pytest.raises(UnknownKernelError, match="write 'norm' instead"):
        json_schema("nrom")
    with pytest.raises(ConfigError, match="is no dataclass"):
        json_schema("user_kernels:Undecorated")
