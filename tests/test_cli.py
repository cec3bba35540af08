"""The commands as a shell runs them: what they print and where, what they exit with, and how they are stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

import stores
import tilewise
from tilewise.cli import main
from tilewise.stopping import TWICE

TESTS = Path(__file__).parent
SHAPE = (3, 8, 12)  # band, y, x
X = np.arange(np.prod(SHAPE), dtype="float64").reshape(SHAPE)
JOB = """\
kernel:
  name: "user_kernels:Total"
  dim: band
inputs:
  x: x.zarr
output:
  store: out.zarr
  chunks: {y: 2, x: 12}
tile: {y: 2}
cluster: {kind: threads, workers: 2}
"""


#: Starts a command that hears SIGINT: what is started in the background of a shell inherits that it is ignored.
HEARS_SIGINT = (
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
)


@dataclass(frozen=True)
class Shell:
    """A folder with a store and a job file, in which commands are run."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [*HEARS_SIGINT, sys.executable, "-m", "tilewise.cli", *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **pipes)  # type: ignore[call-overload]

    def __call__(self, *arguments: str, **options: object) -> tuple[int, str, str]:
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def total(self) -> np.ndarray:
        return stores.read(self.folder / "out.zarr", "total")


@pytest.fixture
def shell(tmp_path) -> Shell:
    stores.write(tmp_path / "x.zarr", {"x": (("band", "y", "x"), X)}, chunks={"y": 2})
    (tmp_path / "job.yaml").write_text(JOB)
    return Shell(tmp_path)


@pytest.fixture
def here(shell, monkeypatch, capfd):
    """Commands within this process, for what does not depend on theirs: a new one loads everything for seconds."""
    monkeypatch.chdir(shell.folder)
    monkeypatch.setattr("tilewise.machine.set_allocator", lambda: None)  # of a process that is the command's own

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        return exit_.value.code, *capfd.readouterr()

    return call


# --- usage


def test_version_and_help(shell):
    assert shell("--version") == (0, f"tilewise, version {tilewise.__version__}\n", "")
    code, out, err = shell("run", "--help")
    assert (code, err) == (0, "")
    for option in ("--set KEY=VALUE", "--overwrite", "--json", "--quiet", "--debug"):
        assert option in out


def test_help_loads_nothing_that_is_slow(shell):
    code = (
        "import sys; from tilewise.cli import _main; code = _main(['--help']);"
        "slow = {'torch', 'zarr', 'xarray', 'pydantic', 'dask', 'numpy', 'ruamel', 'tqdm'};"
        "print(code, sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=shell.environment)
    assert done.stdout.splitlines()[-1:] == ["0 []"], done.stderr


def test_exit_handlers_run_and_the_interpreter_is_not_taken_apart(shell):
    # A thread of a library that asks for the interpreter meanwhile aborts the process, and its exit code is lost.
    code = """
import atexit, sys
from tilewise import cli

class Kept:
    def __del__(self):
        print("taken apart")

def main(arguments):
    atexit.register(print, "handlers ran")
    sys.stdout.write("no newline, ")
    return 3

kept = Kept()  # a global goes when modules are cleared
cli._main = main
cli.console()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=shell.environment)
    assert (done.returncode, done.stdout, done.stderr) == (3, "no newline, handlers ran\n", "")


@pytest.mark.parametrize(
    "arguments",
    [(), ("plan",), ("fly", "job.yaml"), ("plan", "job.yaml", "--fast"), ("run", "job.yaml", "--set")],
)
def test_bad_usage(shell, arguments):
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "")
    assert re.search("^Usage: tilewise|^Error: Option '--set'", err)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_job_file_with_mistakes(shell, here, command):
    (shell.folder / "job.yaml").write_text(JOB.replace("dim", "dmi"))
    code, out, err = here(command, "job.yaml", "--set", "tile=big")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "Error: job.yaml:3:3: kernel.dmi: there is no such key; expected: dim, factor. To mend it: write dim instead.",
        "--set tile=big: tile: not a value for this key; got: \"big\" (text); expected: 'auto' or a mapping. "
        "To mend it: mend tile.",
    ]


def test_a_job_file_that_is_not_there(shell):
    code, out, err = shell("plan", "none.yaml")
    assert (code, out) == (2, "")
    assert err.startswith("Error: none.yaml: No such file or directory")


# --- plan


def test_plan(shell, here):
    code, out, err = here("plan", "job.yaml", "--set", "tile.y=4", "--set", "kernel.factor=2")
    assert code == 0, err
    assert re.search(r"^kernel +user_kernels:Total\(dim=band, factor=2.0\)$", out, re.M)
    assert re.search(r"^tiles +2: y 2, x 1$", out, re.M)
    assert not (shell.folder / "out.zarr").exists()
    assert not (shell.folder / "out.zarr.tilewise").exists()


def test_plan_as_json(here):
    code, out, err = here("plan", "job.yaml", "--json", "--set", "kernel.factor=.inf")
    assert code == 0, err
    found = json.loads(out, parse_constant=pytest.fail)
    assert found["kernel"]["factor"] == "inf"
    assert found["plan"]["tiles"] == 4


def test_a_job_that_does_not_fit_is_refused(here):
    code, out, err = here("plan", "job.yaml", "--set", "memory_limit=1 MiB")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(
        "Error: --set memory_limit=1 MiB: memory_limit: a tile of y=2, x=12 does not fit the memory budget; got: "
    )


def test_a_mistake_in_a_kernel_is_told_without_a_traceback(here):
    code, out, err = here("plan", "job.yaml", "--set", "kernel.name=user_kernels:Mistaken")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(
        "Error: kernel 'mistaken' fails to declare its outputs: KeyError; got: 'y'. To mend it: "
    )
    assert "Traceback" not in err


# --- run


def test_run_then_refusal_then_overwriting(shell, here):
    code, out, err = shell("run", "job.yaml")
    assert code == 0, err
    assert re.search(r"^tiles +4 in ", out, re.M)
    assert re.search(r"^pixels +96 ok$", out, re.M)
    assert re.search(r"^peak +.* of .* predicted", out, re.M)
    assert err.splitlines()[-2] == "tilewise: 0 of 4 tiles"
    assert err.splitlines()[-1].startswith("tilewise: 4 of 4 tiles (100 %) in ")
    np.testing.assert_array_equal(shell.total(), X.sum(axis=0))

    code, out, err = here("run", "job.yaml", "--set", "kernel.factor=2")
    assert (code, out) == (2, "")
    assert err == (
        "Error: job.yaml:7:3: output.store: out.zarr already exists. "
        "To mend it: choose another output.store, or pass --overwrite (in Python: overwrite=True).\n"
    )
    np.testing.assert_array_equal(shell.total(), X.sum(axis=0))

    assert here("run", "job.yaml", "--overwrite", "--quiet", "--set", "kernel.factor=2") == (0, "", "")
    np.testing.assert_array_equal(shell.total(), 2 * X.sum(axis=0))


def test_json_stands_alone_on_standard_output(shell):
    """Though the kernel prints, from Python and past it, in this process and in others."""
    talkative = ["--json", "--set", "kernel.name=user_kernels:Talkative"]
    code, out, err = shell("plan", "job.yaml", *talkative)
    assert code == 0, err
    assert json.loads(out, parse_constant=pytest.fail)["plan"]["tiles"] == 4
    assert "declaring" in err.splitlines()

    code, out, err = shell("run", "job.yaml", "--quiet", *talkative, "--set", "cluster={kind: processes, workers: 1}")
    assert code == 0, err
    found = json.loads(out, parse_constant=pytest.fail)
    assert found["tiles"] == 4
    assert found["statuses"] == {"ok": 96}
    assert found["plan"]["memory"]["peak"] >= found["peak"]
    assert {"declaring", "computing", "computing, below python"} <= set(err.splitlines())


def test_a_tile_that_fails(here):
    fragile = ["--overwrite", "--set", "kernel={name: 'user_kernels:Fragile', dim: band, most: 200}"]
    code, out, err = here("run", "job.yaml", *fragile)
    assert (code, out) == (1, "")
    found = re.fullmatch(
        r"Error: tile (\d) \(y=(\d):\d, x=0:12\) failed: ValueError: x is (\d+)\. (.*)", err.splitlines()[-1]
    )
    assert found, err
    number, row, most = map(int, found.groups()[:3])
    assert row == 2 * number
    assert most == X[:, row : row + 2].max()
    assert found[4] == "To mend it: mend the cause and run again with --resume."
    assert "Traceback" not in err

    code, out, err = here("run", "job.yaml", *fragile, "--debug")
    assert (code, out) == (1, "")
    assert 'raise ValueError(f"x is' in err
    assert err.splitlines()[-1].startswith("Error: tile ")


def test_python_runs_it_as_a_module(tmp_path):
    done = subprocess.run([sys.executable, "-m", "tilewise", "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout.split(",")[0]) == (0, "tilewise")


# --- pipes and signals


def test_nobody_has_to_listen(shell):
    """Standard output and error are pipes that nobody reads, or are closed: the work is done all the same."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert shell("plan", "job.yaml", stdout=writing) == (0, None, "")
        assert shell("run", "job.yaml", stdout=writing, stderr=writing) == (0, None, None)
    finally:
        os.close(writing)
    np.testing.assert_array_equal(shell.total(), X.sum(axis=0))
    closed = f'"{sys.executable}" -m tilewise.cli plan job.yaml >&-'
    done = subprocess.run(closed, shell=True, cwd=shell.folder, env=shell.environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device here that is always full")
def test_results_that_cannot_be_written_are_no_success(shell):
    with Path("/dev/full").open("w") as full:
        code, _, err = shell("plan", "job.yaml", stdout=full)
    assert code == 1
    assert err.splitlines()[-1].startswith("Error: OSError: [Errno 28]")


@pytest.fixture
def slow(shell) -> tuple[Shell, list[str]]:
    """Arguments of a run whose tiles take a second, and that says in a file when the first has begun."""
    sets = ["kernel.name=user_kernels:Slow", "kernel.seconds=1", f"kernel.began={shell.folder / 'began'}"]
    return shell, [part for item in sets for part in ("--set", item)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_run_and_its_workers(slow, number, code):
    shell, arguments = slow
    arguments += ["--set", "cluster={kind: processes, workers: 1}"]
    process = shell.start("run", "job.yaml", *arguments, start_new_session=True)
    while not (shell.folder / "began").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, number)  # as terminals and batch systems do: to the workers too
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1] == f"Error: stopped by {number.name}; a run that has begun goes on with --resume"
    assert not psutil.wait_procs(workers, timeout=60)[1]
    if number == signal.SIGTERM:
        code, out, err = shell("run", "job.yaml", *arguments, "--resume", "--json")
        assert code == 0, err
        assert 0 < json.loads(out)["resumed"] < 4  # what was in work has ended
        np.testing.assert_array_equal(shell.total(), X.sum(axis=0))


def test_a_second_signal_does_not_wait(slow):
    shell, arguments = slow
    arguments += ["--set", "cluster={kind: processes, workers: 1}", "--set", "kernel.seconds=300"]
    process = shell.start("run", "job.yaml", *arguments)
    while not (shell.folder / "began").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    time.sleep(2 * TWICE)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert not psutil.wait_procs(workers, timeout=60)[1]


@pytest.mark.parametrize("command", [("run",), ("plan", "--probe")])
def test_a_second_signal_does_not_wait_for_a_probe_in_a_thread(slow, command):
    shell, arguments = slow
    one_row = ["--set", "tile={y: 1}", "--set", "output.chunks={y: 1, x: 12}"]  # enough tiles for a run to probe some
    arguments += [*one_row, "--set", "cluster={kind: threads, workers: 1}", "--set", "kernel.seconds=300"]
    name, *options = command
    process = shell.start(name, "job.yaml", *options, *arguments)
    while not (shell.folder / "began").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(2 * TWICE)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not (shell.folder / "out.zarr").exists()


def test_tiles_that_fail_are_skipped_where_asked(here):
    fragile = ["--set", "kernel={name: 'user_kernels:Fragile', dim: band, most: 250}"]
    code, out, _ = here("run", "job.yaml", *fragile, "--set", "on_error=skip")
    assert code == 3
    assert re.search(r"^failed +\d tiles?: `tilewise info` names them", out, re.MULTILINE)


SWALLOWED = """
import gc, os, signal, sys, time
from tilewise.shell import ends_in_code

def collect(phase, info):
    if phase == "start" and not sent:
        sent.append(phase)
        os.kill(os.getpid(), {number})
        for _ in range(10):
            time.sleep(0.001)  # the handler runs here, and what it raises is lost

@ends_in_code
def wait():
    gc.callbacks.append(collect)
    gc.collect()
    for _ in range(3000):
        time.sleep(0.01)
    print("swallowed")

sent = []
sys.exit(wait(debug=False))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_comes_while_garbage_is_collected_is_not_lost(shell, number, code):
    script = SWALLOWED.format(number=int(number))
    command = [*HEARS_SIGINT, sys.executable, "-c", script]
    done = subprocess.run(command, env=shell.environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
