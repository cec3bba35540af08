"""A commented job file has every key, loads once it is filled in, and so it does with any one default uncommented."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import tilewise
from tilewise import config
from tilewise.config.template import WIDTH, save, template
from tilewise.errors import ConfigError, OutputExistsError, UnknownKernelError
from tilewise.kernels import Kernel, kernel_class

BUILT_IN = [name for name, cls in Kernel.registered().items() if cls.__module__.startswith("tilewise.kernels.")]
NAMES = [*BUILT_IN, "user_kernels:Total", "user_kernels:Everything", "user_kernels:Slow", "user_kernels:Odd"]
#: Any value of a type, as a person fills it in.
FILLED = {"str": "filled", "float": "0.5", "int": "3"}
SETTING = re.compile(r"^( *)#(\w+: .*)$", re.M)


def filled(text: str) -> str:
    """The same with a value where one is required."""
    return re.sub(r":  # required: (\w+)$", lambda found: f": {FILLED[found[1]]}", text, flags=re.M)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_every_key_once_and_is_no_wider_than_a_page(name: str) -> None:
    text = template(name)
    kernel: Any = kernel_class(name)
    for record in (kernel, tilewise.Job, tilewise.Output, tilewise.Cluster):
        for one in fields(record):
            assert re.search(rf"^ *(#?{one.name}:|## {one.name} is )", text, re.M), one.name
    assert max(map(len, text.splitlines())) <= WIDTH
    inputs = text[text.index("\ninputs:") : text.index("\noutput:")]
    assert re.findall(r"^  (\w+):$", inputs, re.M) == list(kernel.input_sets[0])


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_once_it_is_filled_in(name: str) -> None:
    job = config.loads(filled(template(name)))
    assert type(job.kernel) is kernel_class(name)
    assert list(job.inputs) == list(job.kernel.input_sets[0])
    bare = re.sub(r"^ *#.*\n", "", filled(template(name)), flags=re.M)
    assert config.loads(bare) == job
    assert job.cluster == tilewise.Cluster()


@pytest.mark.parametrize("name", NAMES)
def test_any_one_default_may_be_uncommented_and_is_the_default(name: str) -> None:
    text = filled(template(name))
    job = config.loads(text)
    settings = list(SETTING.finditer(text))
    assert len(settings) > 10
    for found in settings:
        one = config.loads(text[: found.start()] + found[1] + found[2] + text[found.end() :])
        if re.fullmatch(r"(\w+): \1\.zarr", found[2]):  # an input of another set
            assert set(one.inputs) - set(job.inputs) == {found[2].partition(":")[0]}
        else:
            assert one == job, found[0]


def test_what_is_required_is_refused_until_it_is_filled_in() -> None:
    with pytest.raises(ConfigError) as caught:
        config.loads(template("lstsq"), name="job.yaml")
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "kernel.dim",
        "inputs.A.store",
        "inputs.b.store",
        "output.store",
    ]
    for line in lines:
        assert re.match(r"job.yaml:\d+:\d+: \S+: not a value for this key; got: null; expected: text\. ", line)
        assert line.endswith("To mend it: give it a value, or remove the key if it has a default.")


def test_descriptions_are_those_of_the_docstrings() -> None:
    text = template("norm")
    assert "  # Dimension of x over the components of a vector.\n  dim:  # required: str\n" in text
    assert "\n# Which workers do the tiles.\ncluster:\n" in text
    assert text.startswith("# norm: Norm of the vector along `dim`: x (dim, ...) -> norm (...).\n#\n")


def test_a_new_kernel_appears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernel, "_registry", dict(Kernel._registry))

    @dataclass(frozen=True, kw_only=True)
    class Fresh(Kernel, name="fresh"):
        bound: float
        words: tuple[str, ...] = ("a b", "c: d")
        strange: object = Path("x")
        largest: float = float("inf")

    assert is_dataclass(Fresh)
    text = template("fresh")
    assert "  bound:  # required: float\n  #words: [a b, 'c: d']\n" in text
    assert "  #largest: .inf\n" in text
    assert re.search(r"^  ## strange is PosixPath\('x'\) unless given$", text, re.M)
    assert "inputs:\n  NAME:\n" in text
    assert config.loads(filled(text)).kernel == Fresh(bound=0.5)


def test_what_has_no_job_file() -> None:
    with pytest.raises(UnknownKernelError, match="write 'norm' instead"):
        template("nrom")
    with pytest.raises(ConfigError, match="is no dataclass"):
        template("user_kernels:Undecorated")


def test_a_file_is_written_whole_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    save("a: 1\n", path)
    assert path.read_text() == "a: 1\n"
    with pytest.raises(OutputExistsError, match=r"job.yaml already exists\. To mend it: .* --force"):
        save("b: 2\n", path)
    assert path.read_text() == "a: 1\n"
    save("b: 2\n", path, force=True)
    assert path.read_text() == "b: 2\n"
    assert [child.name for child in tmp_path.iterdir()] == ["job.yaml"]


@pytest.mark.parametrize("place", ["none/job.yaml", "."])
def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigError, match="check its path"):
        save("a: 1\n", tmp_path / place, force=True)
    assert not list(tmp_path.iterdir())


def test_what_goes_with_the_inputs_is_told_from_what_replaces_them() -> None:
    lstsq, affine_norm = template("lstsq"), template("affine_norm")
    assert "  # And, if wanted:\n  #weights: weights.zarr\n  #L: L.zarr\n" in lstsq
    assert "instead" not in lstsq[lstsq.index("\ninputs:") : lstsq.index("\noutput:")]
    assert "  # Or, instead of primitives:\n  #scale: scale.zarr\n  #offset: offset.zarr\n" in affine_norm
