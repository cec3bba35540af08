"""Job files: what they may say, where a mistake is, and that a job comes back from its file as it went."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tilewise
from tilewise import Cluster, Input, Job, Kernel, Output, config
from tilewise.config.document import Document
from tilewise.errors import ConfigError, DTypeError, ParameterError, UnknownKernelError
from user_kernels import Everything, Total, Window

JOB = """\
# a comment
kernel: {name: "user_kernels:Total", dim: band}
inputs:
  x: cube.zarr
output: out.zarr
"""

FULL = """\
kernel:
  name: "user_kernels:Everything"
  dim: band
  factor: 2
  names: [a, b]
  orders: [1, .inf, inf, 1e-3]
  count: 3
  exact: true
  mode: safe
  limit: -inf
  label: "12"
  table: {one: 1, half: 0.5}
  window: 5
  other: {width: 7, taper: 0.25}
inputs:
  x: {store: cube.zarr, variable: v, dims: [band, y, x]}
output:
  store: out.zarr
  chunks: {y: 256, x: 128}
  shards: {y: 512}
  dtype: float32
  codec: {name: zstd, configuration: {level: 9}}
  attrs: {total: {units: mm/year, made: 2024-01-01, at: 12:00:00}}
memory_limit: 1 GiB
tile: {y: 512}
cluster: {kind: threads, workers: 2}
device: auto
sidecar: records
"""


def message(text: str, *overrides: str, name: str = "job.yaml") -> str:
    with pytest.raises(ConfigError) as caught:
        config.loads(text, overrides, name=name)
    return str(caught.value)


def kernel(**parameters: object) -> Everything:
    """The kernel of a job file whose parameters are given as YAML."""
    sets = [f"kernel.{key}={value}" for key, value in parameters.items()]
    found = config.loads(JOB, ["kernel.name=user_kernels:Everything", *sets]).kernel
    assert isinstance(found, Everything)
    return found


def test_a_file_says_what_python_says(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(FULL)
    assert config.load(path) == Job(
        kernel=Everything(
            dim="band",
            factor=2.0,
            names=("a", "b"),
            orders=(1.0, math.inf, math.inf, 1e-3),
            count=3,
            exact=True,
            mode="safe",
            limit=-math.inf,
            label="12",
            table={"one": 1.0, "half": 0.5},
            window=Window(5),
            other=Window(7, 0.25),
        ),
        inputs={"x": Input(store="cube.zarr", variable="v", dims=("band", "y", "x"))},
        output=Output(
            store="out.zarr",
            chunks={"y": 256, "x": 128},
            shards={"y": 512},
            dtype="float32",
            codec={"name": "zstd", "configuration": {"level": 9}},
            attrs={"total": {"units": "mm/year", "made": "2024-01-01", "at": "12:00:00"}},
        ),
        memory_limit="1 GiB",
        tile={"y": 512},
        cluster=Cluster(kind="threads", workers=2),
        device="auto",
        sidecar="records",
    )


def test_short_forms_and_defaults():
    assert config.loads(JOB) == Job(kernel=Total(dim="band"), inputs={"x": "cube.zarr"}, output="out.zarr")


@pytest.mark.parametrize(
    ("yaml", "value"),
    [
        ("12:00:00", "12:00:00"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("yes", "yes"),
        ("off", "off"),
        ("=", "="),
        ("'3'", "3"),
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("0o17", 15),
        ("0x1F", 31),
        ("010", 10),
        ("true", True),
        ("~", None),
        ("!!str 5", "5"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(yaml, value):
    found = Document.parse(f"a: {yaml}", "job").value["a"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("parameter", "yaml", "value"),
    [
        ("factor", "3", 3.0),
        ("factor", "inf", math.inf),
        ("factor", "'-inf'", -math.inf),
        ("factor", ".inf", math.inf),
        ("limit", "null", None),
        ("limit", "1", 1.0),
        ("count", "2e3", 2000),
        ("names", "[]", ()),
        ("names", "['1']", ("1",)),
        ("label", "inf", "inf"),
        ("label", "3", 3),
        ("label", "'3'", "3"),
        ("window", "4", Window(4)),
        ("other", "null", None),
        ("table", "{a: inf}", {"a": math.inf}),
    ],
)
def test_what_yaml_users_write_is_taken(parameter, yaml, value):
    found = getattr(kernel(**{parameter: yaml}), parameter)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("parameter", "yaml", "expected"),
    [
        ("factor", "true", "a number"),
        ("factor", "three", "a number"),
        ("factor", "'3'", "a number. To mend it: write it without quotes"),
        ("factor", "[1]", "a number"),
        ("count", "true", "a whole number"),
        ("count", "2.5", "a whole number"),
        ("count", "null", "a whole number. To mend it: give it a value, or remove the key"),
        ("exact", "1", "true or false"),
        ("exact", "yes", "true or false"),
        ("mode", "slow", "'fast' or 'safe'"),
        ("mode", "fats", "'fast' or 'safe'. To mend it: write fast instead"),
        ("dim", "3", "text. To mend it: put it in quotes"),
        ("dim", "true", "text. To mend it: put it in quotes"),
        ("names", "rank", "a list. To mend it: write it as a list: [rank]"),
        ("names", "[1]", "text"),
        ("label", "1.5", "text or a whole number"),
        ("table", "[1]", "a mapping"),
        ("table", "{a: b}", "a number"),
        ("window", "{width: 3, tapir: 1}", "width, taper. To mend it: write taper instead"),
        ("window", "{}", "add kernel.window.width"),
    ],
)
def test_what_is_of_another_type_is_refused(parameter, yaml, expected):
    text = message(JOB, "kernel.name=user_kernels:Everything", f"kernel.{parameter}={yaml}")
    assert text.startswith(f"--set kernel.{parameter}={yaml}: kernel.{parameter}")
    assert expected in text


KEYS = "kernel, inputs, output, memory_limit, tile, cluster, device, sidecar, on_error, retries, read_ahead"

WRONG = {
    "unknown key": (
        JOB + "outptu: b.zarr\n",
        f"job.yaml:6:1: outptu: there is no such key; expected: {KEYS}. To mend it: write output instead.",
    ),
    "nothing like any key": (
        JOB + "zzz: 1\n",
        f"job.yaml:6:1: zzz: there is no such key; expected: {KEYS}. To mend it: remove it.",
    ),
    "key one level too high": (
        JOB + "chunks: {y: 5}\n",
        f"job.yaml:6:1: chunks: there is no such key; expected: {KEYS}. To mend it: write output.chunks instead.",
    ),
    "parameter one level too high": (
        JOB.replace("user_kernels:Total", "norm") + "ord: 1\n",
        f"job.yaml:6:1: ord: there is no such key; expected: {KEYS}. To mend it: write kernel.ord instead.",
    ),
    "misspelt parameter": (
        JOB.replace("dim", "dmi"),
        "job.yaml:2:38: kernel.dmi: there is no such key; expected: dim, factor. To mend it: write dim instead.",
    ),
    "missing parameter": (
        JOB.replace(", dim: band", ""),
        "job.yaml:2:1: kernel.dim: the key is missing. To mend it: add kernel.dim.",
    ),
    "missing output": (
        JOB.replace("output: out.zarr\n", ""),
        "job.yaml:2:1: output: the key is missing. To mend it: add output.",
    ),
    "unknown kernel": (
        JOB.replace("user_kernels:Total", "nrom"),
        "job.yaml:2:10: kernel.name: there is no kernel 'nrom'; expected: ",
    ),
    "no kernel name": (
        JOB.replace('name: "user_kernels:Total", ', ""),
        "job.yaml:2:1: kernel.name: the key is missing; expected: affine_norm, ",
    ),
    "value that the kernel refuses": (
        JOB.replace("dim: band", "dim: band, factor: 0"),
        "job.yaml:2:49: kernel.factor: kernel.factor is zero; got: 0.0; expected: any other number. "
        "To mend it: mend kernel.factor.",
    ),
    "no memory": (
        JOB + "memory_limit: three\n",
        "job.yaml:6:1: memory_limit: memory_limit is not a number of bytes; got: ",
    ),
    "endless memory": (
        JOB + "memory_limit: 1e400 GiB\n",
        "job.yaml:6:1: memory_limit: memory_limit is not a number of bytes; got: ",
    ),
    "negative chunk": (
        JOB.replace("output: out.zarr", "output:\n  store: out.zarr\n  chunks:\n    y: 64\n    x: -1"),
        "job.yaml:9:5: output.chunks.x: output.chunks of 'x' is not a size; got: -1; "
        "expected: a whole number of cells, at least 1. To mend it: mend output.chunks.x.",
    ),
    "text for a size": (
        JOB + "tile:\n  y: three\n",
        'job.yaml:7:3: tile.y: not a value for this key; got: "three" (text); expected: a whole number. '
        "To mend it: mend tile.y.",
    ),
    "neither branch of a union": (
        JOB + "tile: big\n",
        "job.yaml:6:1: tile: not a value for this key; got: \"big\" (text); expected: 'auto' or a mapping. "
        "To mend it: mend tile.",
    ),
    "item of a list": (
        JOB.replace("x: cube.zarr", "x:\n    store: cube.zarr\n    dims:\n    - y\n    - 1"),
        "job.yaml:8:7: inputs.x.dims.1: not a value for this key; got: 1; expected: text. "
        "To mend it: put it in quotes, if it is meant as text.",
    ),
    "unknown key of an input": (
        JOB.replace("x: cube.zarr", "x: {store: cube.zarr, vairable: v}"),
        "job.yaml:4:25: inputs.x.vairable: there is no such key; expected: store, variable, variables, stack, dims, "
        "mask_and_scale, valid_range. To mend it: write variable instead.",
    ),
    "contradiction of two keys": (
        JOB + "cluster: {kind: processes, threads: 2}\n",
        "job.yaml:6:28: cluster.threads: a processes worker does one tile at a time; got: cluster.threads 2. "
        "To mend it: set cluster.workers instead, or use cluster.kind local.",
    ),
    "store that is a number": (
        JOB.replace("cube.zarr", "5"),
        "job.yaml:4:3: inputs.x.store: not a value for this key; got: 5; expected: text. "
        "To mend it: put it in quotes, if it is meant as text.",
    ),
    "list at the top": (
        "- kernel\n",
        f'job.yaml:1:1: not a mapping; got: ["kernel"]; expected: the keys {KEYS}. To mend it: mend the file.',
    ),
    "key without a value": (
        JOB + "cluster:\n",
        "job.yaml:6:1: cluster: not a mapping; got: null; expected: the keys kind, workers, threads, "
        "address, scheduler_file, wait_for, timeout. "
        "To mend it: give it a value, or remove the key if it has a default.",
    ),
    "key among others that are words": (
        JOB + "cluster:\n  kind: processes\n  workers: 1\n  timeout: 2\n",
        "job.yaml:9:3: cluster.timeout: cluster.timeout is about workers that run already; ",
    ),
    "dtype": (
        JOB.replace("output: out.zarr", "output: {store: out.zarr, dtype: float99}"),
        "job.yaml:5:27: output.dtype: dtype 'float99' is not supported; expected: one of bool, ",
    ),
    "empty": ("# nothing\n", "job.yaml:1:1: there is nothing in it"),
    "bracket": ("kernel: [1\ninputs: 2\n", "job.yaml:2:7: not YAML: expected ',' or ']'"),
    "colon": ("kernel: a: b\n", "job.yaml:1:10: not YAML: mapping values are not allowed here"),
    "tab": ("kernel:\n\tname: norm\n", "job.yaml:2:1: not YAML: found character '\\t' that cannot start any token"),
    "quote": ("kernel: 'norm\n", "job.yaml:2:1: not YAML: found unexpected end of stream"),
    "two documents": ("a: 1\n---\nb: 2\n", "job.yaml:2:1: not YAML: but found another document"),
    "duplicate key": (JOB + "output: b.zarr\n", "job.yaml:6:1: output: the key is there twice"),
    "unknown alias": ("kernel: *norm\n", "job.yaml:1:9: not YAML: found undefined alias 'norm'"),
    "alias of itself": ("kernel: &a [*a]\n", "job.yaml:1:9: this alias contains itself"),
    "merge of a list": ("<<: [1]\n", "job.yaml:1:6: << can only merge mappings; got: 1"),
    "tag": ("kernel: !!python/object:os.system x\n", "job.yaml:1:9: the tag tag:yaml.org,2002:python/object:os.system"),
    "key that is no text": ("1: x\n", "job.yaml:1:1: a key is not text; got: 1. To mend it: put it in quotes."),
    "control character": ("a: 1\nb: \x01\n", "job.yaml:2:4: character 0x01 is not allowed in YAML"),
    "endless number": (f"a: {'9' * 5000}\n", "job.yaml:1:4: this number cannot be read"),
    "endless nesting": ("[" * 1000, "job.yaml:1:1: not YAML"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_has_its_place_and_key(case):
    text, expected = WRONG[case]
    assert message(text).startswith(expected)


def test_all_mistakes_are_told_in_the_order_of_the_file():
    text = message(JOB.replace("dim: band", "dim: 3, factor: x") + "device: gpu\nclutser: {}\n", "tile=big")
    assert [line.partition(" ")[0] for line in text.splitlines()] == [
        "job.yaml:2:38:",
        "job.yaml:2:46:",
        "job.yaml:6:1:",
        "job.yaml:7:1:",
        "--set",
    ]
    assert not text.endswith("..")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (WRONG["value that the kernel refuses"][0], ParameterError),
        (WRONG["dtype"][0], DTypeError),
        (WRONG["unknown kernel"][0], UnknownKernelError),
    ],
)
def test_the_original_error_is_kept(text, cause):
    with pytest.raises(ConfigError) as caught:
        config.loads(text)
    assert type(caught.value.__cause__) is cause


def test_several_original_errors_are_kept():
    with pytest.raises(ConfigError) as caught:
        config.loads(JOB, ["kernel.factor=0", "cluster.workers=0"])
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert [type(error) for error in caught.value.__cause__.exceptions] == [ParameterError, ParameterError]


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            config.load(path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: 1\nname: größe\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin.yaml:2:9: the job file is not UTF-8; got: byte 0xf6"):
        config.load(latin)


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + JOB.encode())
    assert config.load(path) == config.loads(JOB)


def test_anchors_and_merges():
    text = """\
kernel: {name: "user_kernels:Total", dim: band}
inputs: {x: &cube {store: cube.zarr, variable: v}}
output: {<<: *cube, store: out.zarr}
"""
    expected = (
        "job.yaml:2:38: output.variable: there is no such key; expected: store, chunks, shards, dtype, codec, attrs"
    )
    assert message(text).startswith(expected)
    cluster = "cluster: {<<: [{workers: 2}, {kind: threads, workers: 3}], threads: 2}\n"
    assert config.loads(JOB + cluster).cluster == Cluster(kind="threads", workers=2, threads=2)


# --- overrides


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("kernel.factor=3", "kernel.factor", 3.0),
        ("kernel.factor = .5", "kernel.factor", 0.5),
        ("cluster.kind=threads", "cluster.kind", "threads"),
        ("inputs.x.variable=v", "inputs.x", Input(store="cube.zarr", variable="v")),
        ("inputs.x=s3://bucket/cube.zarr", "inputs.x", Input(store="s3://bucket/cube.zarr")),
        ("output.chunks.y=256", "output", Output(store="out.zarr", chunks={"y": 256})),
        ("output.codec.name=gzip", "output.codec", {"name": "gzip"}),
        ("output.attrs.total.units=a=b", "output.attrs", {"total": {"units": "a=b"}}),
        ("tile.y=512", "tile", {"y": 512}),
        ("tile={y: 512}", "tile", {"y": 512}),
        ("memory_limit=2 GiB", "memory_limit", "2 GiB"),
        ("memory_limit=", "memory_limit", None),
    ],
)
def test_overrides(override, path, value):
    found = config.loads(JOB, [override])
    for key in path.split("."):
        found = found[key] if isinstance(found, dict) else getattr(found, key)
    assert found == value


def test_later_overrides_win():
    overrides = ["kernel.factor=2", "kernel={name: 'user_kernels:Total', dim: y}", "kernel.dim=x"]
    assert config.loads(JOB, overrides).kernel == Total(dim="x")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("kernel.fctor=1", "kernel.fctor: there is no such key; expected: dim, factor. To mend it: write factor"),
        ("clutser.kind=threads", f"clutser: there is no such key; expected: {KEYS}. To mend it: write cluster"),
        ("memory_limit.x=3", 'memory_limit: not a value for this key; got: {"x": 3}'),
        ("kernel.factor=0", "kernel.factor: kernel.factor is zero"),
        ("kernel={dim: x}", "kernel.name: the key is missing"),
        ("kernel=norm", "kernel.dim: the key is missing"),
        ("kernel.factor", "not a change; expected: a key and a value"),
        ("=1", "not a change"),
        ("kernel..dim=1", "not a change"),
    ],
)
def test_a_mistake_in_an_override_names_it(override, expected):
    assert message(JOB, override).startswith(f"--set {override}: {expected}")


def test_syntax_of_an_override():
    assert message(JOB, "kernel.dim=[").startswith("--set kernel.dim=[:1:2: not YAML")


def test_an_override_does_not_hide_that_the_file_is_none():
    assert message("- a\n", "kernel.dim=x").startswith("job.yaml:1:1: not a mapping")


# --- kernels that users bring


def test_a_kernel_that_cannot_be_imported_says_what_to_do():
    text = message(JOB.replace("user_kernels", "nowhere"))
    assert text.startswith("job.yaml:2:10: kernel.name: kernel 'nowhere:Total' cannot be imported; got: No module")
    assert "put the folder of the module on PYTHONPATH: the job file's own is not searched" in text
    assert "has no attribute 'Totals'" in message(JOB.replace("Total", "Totals"))


def test_a_module_that_fails_says_how(tmp_path, monkeypatch):
    (tmp_path / "broken_kernels.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = message(JOB.replace("user_kernels", "broken_kernels"))
    assert "importing 'broken_kernels:Total' fails; got: ZeroDivisionError: division by zero" in text


def test_a_class_without_parameters_is_refused():
    assert "kernel 'user_kernels:Undecorated' is no dataclass" in message(JOB.replace("Total", "Undecorated"))


# --- back


def texts(least: int = 0) -> st.SearchStrategy[str]:
    """Any text but lone surrogates, which no file can hold, and what YAML might take for something else."""
    odd = [
        "1",
        "1e3",
        ".inf",
        "inf",
        "null",
        "~",
        "yes",
        "true",
        "12:00:00",
        "2024-01-01",
        "<<",
        "=",
        "0o7",
        "- a",
        "#",
    ]
    return st.sampled_from(odd) | st.text(st.characters(exclude_categories=["Cs"]), min_size=least, max_size=8)


numbers = st.floats(allow_nan=False)
places = texts(1).filter(lambda text: "\0" not in text)
sizes = st.dictionaries(texts(), st.integers(1, 1 << 40), max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
    max_leaves=5,
)
inputs = st.one_of(
    st.builds(Input, store=places, variable=st.none() | texts(), dims=st.none() | st.lists(texts(), max_size=3)),
    st.builds(Input, store=places, variables=st.lists(texts(), max_size=3), stack=texts()),
)
outputs = st.builds(
    Output,
    store=places,
    chunks=sizes,
    shards=st.none() | sizes,
    dtype=st.sampled_from([None, "float16", "float32", "complex128"]),
    codec=texts() | st.dictionaries(texts(), values, max_size=3),
    attrs=st.dictionaries(texts(), st.dictionaries(texts(), values, max_size=3), max_size=2),
)
kernels = st.one_of(
    st.builds(Total, dim=texts(), factor=numbers.filter(bool)),
    st.builds(
        Everything,
        dim=texts(),
        names=st.lists(texts(), max_size=3).map(tuple),
        orders=st.lists(numbers, max_size=3).map(tuple),
        count=st.integers(),
        exact=st.booleans(),
        mode=st.sampled_from(["fast", "safe"]),
        limit=st.none() | numbers,
        label=st.none() | texts() | st.integers(),
        table=st.dictionaries(texts(), numbers, max_size=3),
        window=st.builds(Window, st.integers(), numbers),
        other=st.none() | st.builds(Window, st.integers()),
    ),
    st.builds(tilewise.Norm, dim=texts(), ord=numbers),
)
jobs = st.builds(
    Job,
    kernel=kernels,
    inputs=st.dictionaries(texts(), inputs, max_size=3),
    output=outputs,
    memory_limit=st.sampled_from([None, "1 GiB", "800MB"]) | st.integers(1, 1 << 50),
    tile=st.just("auto") | sizes,
    cluster=st.builds(
        Cluster,
        kind=st.sampled_from(["auto", "threads", "local"]),
        workers=st.none() | st.integers(1, 99),
        threads=st.integers(1, 9),
    ),
    device=st.sampled_from(["cpu", "auto", "cuda"]),
    sidecar=st.none() | places,
)


@settings(max_examples=60, deadline=None)
@given(jobs)
@example(Job(kernel=Total(dim="x"), inputs={}, output=Output(store="o", shards={}, codec={})))
def test_a_job_comes_back_from_its_file(job):
    assert config.loads(config.dump(job)) == job


def test_a_job_in_memory_has_no_file():
    job = Job(kernel=Total(dim="x"), inputs={"x": Input(store=np.zeros(3), dims=("x",))}, output="o.zarr")
    with pytest.raises(ConfigError, match="input 'x' is in memory"):
        config.dump(job)


def test_a_value_without_a_form_in_yaml_has_no_file():
    job = Job(kernel=Total(dim="x"), inputs={}, output=Output(store="o.zarr", attrs={"total": {"at": object()}}))
    with pytest.raises(ConfigError, match="a value has no form in YAML"):
        config.dump(job)


def test_a_class_that_has_no_name_has_no_file():
    @dataclass(frozen=True, kw_only=True)
    class Local(Total):
        pass

    with pytest.raises(ConfigError, match="cannot name the kernel's class"):
        config.dump(Job(kernel=Local(dim="x"), inputs={}, output="o.zarr"))


# --- walls


def test_no_door_names_a_kernel_or_its_parameters():
    package = Path(tilewise.__file__).parent
    built_in = [cls for cls in Kernel.registered().values() if cls.__module__.startswith("tilewise.kernels.")]
    assert built_in
    words = {cls.name for cls in built_in} | {f.name for cls in built_in for f in fields(cls)}
    for path in (
        *(package / f"{door}.py" for door in ("cli", "report", "catalogue")),
        *(package / "config").glob("*.py"),
    ):
        tree = ast.parse(path.read_text())
        found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} & words
        found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & words
        assert not found, f"{path.name} names {found}"


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent.parent / "configs").glob("*.yaml")), ids=lambda p: p.name
)
def test_the_job_files_of_the_repository_are_understood(path):
    job = config.load(path)
    assert config.loads(config.dump(job)) == job
