"""The house of docs/design.md is the one in src: its floors and walls are read from the page and kept here."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tilewise"
DESIGN = (ROOT / "docs" / "design.md").read_text()
#: The one import upwards, and only inside the function: file, function, line of the house that it may reach.
SANCTIONED = ("kernels/base.py", "__call__", "lazy.py")


@dataclass(frozen=True)
class Line:
    """A line of the house: a file, or a folder whose files may import each other without a cycle."""

    name: str
    floor: int
    planned: bool


@dataclass(frozen=True)
class Import:
    """One import statement's target: the module, and the function around it, "" at module level."""

    module: str
    function: str

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def read_house() -> list[Line]:
    block = re.search(r"^## The house.*?^```\w*\n(.*?)^```", DESIGN, re.S | re.M)
    assert block, "docs/design.md has no block of files under 'The house'"
    lines, floor = [], -1
    for text in block[1].splitlines():
        found = re.match(r"(\d| ) (\S+) +(.*)", text)
        assert found, f"no line of the house: {text!r}"
        floor = int(found[1]) if found[1] != " " else floor
        lines.append(Line(found[2], floor, found[3].startswith("planned:")))
    return lines


def read_walls() -> dict[str, str]:
    """Where a package may be imported, by its import name."""
    rows = re.findall(r"^\| `([^|]+)` \| (.+?) \|$", DESIGN, re.M)
    return {package: where for names, where in rows for package in names.split("`, `")}


HOUSE = read_house()
HEIGHT = {line.name: len(HOUSE) - i for i, line in enumerate(HOUSE)}
WALLS = read_walls()
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def line_of(path: str) -> Line:
    """The line of the house that a file, or a folder's file, belongs to."""
    found = [line for line in HOUSE if path == line.name or (line.name.endswith("/") and path.startswith(line.name))]
    assert len(found) == 1, f"src/tilewise/{path} has {len(found)} lines in the house of docs/design.md"
    return found[0]


def imports(path: str) -> list[Import]:
    return list(_imports(ast.parse((PACKAGE / path).read_text()), path, ""))


def _imports(node: ast.AST, path: str, function: str) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inside = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, function) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{path} imports relatively: the walls are seen by absolute names"
            names = [f"{child.module}.{alias.name}" for alias in child.names]
            yield from (Import(name if _file_of(name) else str(child.module), function) for name in names)
        yield from _imports(child, path, inside)


def _file_of(module: str) -> str | None:
    """The file of a module of this package, relative to the package."""
    parts = module.split(".")
    if parts[0] != "tilewise":
        return None
    inner = Path(*parts[1:])
    candidates = (inner.with_suffix(".py"), inner / "__init__.py") if parts[1:] else (Path("__init__.py"),)
    return next((c.as_posix() for c in candidates if (PACKAGE / c).exists()), None)


def is_type_checking_only(path: str, wanted: Import) -> bool:
    """Whether a module is imported at module level under `if TYPE_CHECKING` alone: it is then never loaded."""
    tree = ast.parse((PACKAGE / path).read_text())
    guarded = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    inside = [found for block in guarded for found in _imports(block, path, "")]
    return inside.count(wanted) == imports(path).count(wanted)


def test_the_house_lists_the_files_that_there_are():
    assert len(HEIGHT) == len(HOUSE), "a name is listed twice"
    assert [line.floor for line in HOUSE] == sorted((line.floor for line in HOUSE), reverse=True)
    for line in HOUSE:
        assert (PACKAGE / line.name).exists() != line.planned, f"{line.name}: planned and there, or neither"


@pytest.mark.parametrize("path", FILES)
def test_a_file_imports_only_from_lines_below(path):
    own = line_of(path)
    for found in imports(path):
        target = _file_of(found.module)
        if target is None or (path, found.function, target) == SANCTIONED:
            continue
        other = line_of(target)
        assert other == own or HEIGHT[other.name] < HEIGHT[own.name], f"{path} imports {target}, which is not below"


@pytest.mark.parametrize("folder", sorted({line.name for line in HOUSE if line.name.endswith("/")}))
def test_files_of_a_folder_have_no_cycle(folder):
    files = [path for path in FILES if path.startswith(folder)]
    graph = {path: {_file_of(i.module) for i in imports(path)} & set(files) - {path} for path in files}
    assert len(list(TopologicalSorter(graph).static_order())) == len(files)


@pytest.mark.parametrize("path", FILES)
def test_a_file_imports_only_packages_that_its_place_may_know(path):
    for found in imports(path):
        if found.top == "tilewise" or found.top in sys.stdlib_module_names:
            continue
        assert found.top in WALLS, f"{path} imports {found.module}, which docs/design.md does not know"
        assert _may_know(path, WALLS[found.top]), f"{path} imports {found.module}: {WALLS[found.top]}"


def _may_know(path: str, where: str) -> bool:
    floors = re.match(r"floor (\d) and above", where)
    if floors:
        return line_of(path).floor >= int(floors[1])
    return line_of(path).name in re.findall(r"`([^`]+)`", where)


@pytest.mark.parametrize("path", [path for path in FILES if path.startswith("kernels/")])
def test_declaring_a_kernel_does_not_load_torch(path):
    for found in imports(path):
        loads = not found.function and not is_type_checking_only(path, found)
        target = _file_of(found.module)
        assert not (loads and found.top == "torch"), f"{path} imports torch where it is loaded"
        assert not (loads and target and target.startswith("linalg/") and _loads_torch(target)), (
            f"{path} imports {target}, which loads torch"
        )


def _loads_torch(path: str) -> bool:
    return any(
        not found.function
        and not is_type_checking_only(path, found)
        and (found.top == "torch" or ((target := _file_of(found.module)) is not None and _loads_torch(target)))
        for found in imports(path)
    )


def test_every_wall_is_of_a_package_that_is_used():
    used = {found.top for path in FILES for found in imports(path)}
    assert set(WALLS) <= used, f"docs/design.md names packages that nothing imports: {set(WALLS) - used}"
