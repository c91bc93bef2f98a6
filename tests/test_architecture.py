"""The shape of the package: layers, sizes, what may be imported where.

The checks read every import, also those inside functions and ``TYPE_CHECKING`` blocks, because that is where
circles hide.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import icechunk_arrow

ROOT = Path(icechunk_arrow.__file__).parent
PACKAGE = "icechunk_arrow"
LAYERS = {"errors": 0, "settings": 0, "core": 1, "formats": 2, "storage": 3, "engine": 4}
SURFACES = 5
FOREIGN_TO_CORE = {
    "os",
    "time",
    "random",
    "secrets",
    "socket",
    "threading",
    "fsspec",
    "s3fs",
    "asyncio",
}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "util", "helper"}
LONGEST_FILE = 640
LONGEST_FUNCTION = 95
MODULES = sorted(ROOT.rglob("*.py"))


def module_name(path: Path) -> str:
    """Name of a module as it is imported."""
    parts = [PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            children = {f"{node.module}.{alias.name}" for alias in node.names}
            names = {module_name(each) for each in MODULES}
            found.update((children & names) or {node.module})
    return found


def layer_of(name: str) -> int:
    """Place of a module in the order of layers."""
    parts = name.split(".")
    return LAYERS.get(parts[1], SURFACES) if len(parts) > 1 else SURFACES + 1


def ours(path: Path) -> set[str]:
    """Modules of this package that a file imports."""
    return {name for name in imports_of(path) if name.split(".")[0] == PACKAGE}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_one_way(path: Path) -> None:
    """A module imports from its own layer and those before it, wherever the import stands."""
    mine = layer_of(module_name(path))
    wrong = {name for name in ours(path) if layer_of(name) > mine}

    assert wrong == set()


@pytest.mark.parametrize("path", sorted((ROOT / "storage").rglob("*.py")), ids=module_name)
def test_storage_moves_bytes_and_knows_nothing(path: Path) -> None:
    """Storage imports neither core nor formats."""
    assert {name for name in ours(path) if layer_of(name) in {1, 2}} == set()


@pytest.mark.parametrize(
    "path", [p for p in MODULES if layer_of(module_name(p)) in {1, 2}], ids=module_name
)
def test_core_and_formats_are_pure(path: Path) -> None:
    """Core and formats touch no disk, clock, generator or thread."""
    assert {name.split(".")[0] for name in imports_of(path)} & FOREIGN_TO_CORE == set()


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_whoever_reads_a_whole_object_says_how_much_may_come(path: Path) -> None:
    """Outside of storage no object is fetched before its size is judged."""
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"get", "get_versioned"}
        and ast.unparse(node.func.value).rpartition(".")[2] in {"storage", "_storage"}
    ]

    assert all(any(word.arg == "limit_bytes" for word in call.keywords) for call in calls)


def test_there_are_no_circles() -> None:
    """The graph of imports has no circle, lazy and type-only imports included."""
    graph = {module_name(path): ours(path) - {module_name(path)} for path in MODULES}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above, name])
        if name in done:
            return
        for each in sorted(graph.get(name, ())):
            visit(each, (*above, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_fsspec_is_imported_by_storage_alone() -> None:
    """Only storage knows the libraries that reach places."""
    users = {
        module_name(path)
        for path in MODULES
        if {name.split(".")[0] for name in imports_of(path)} & {"fsspec", "s3fs"}
    }

    assert {name.split(".")[1] for name in users} == {"storage"}


LASTING = {"Lock", "RLock", "Condition", "Semaphore", "ThreadPoolExecutor", "Future"}
WITHIN_A_CALL = {"ManifestWriter", "JointReads", "_Load"}
"""Classes whose locks and threads do not outlive the calls of those who share them."""


def _made_in(node: ast.AST) -> set[str]:
    """Names of what a class or module calls, as far as it could be such a thing."""
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    names = {
        each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in calls
    }
    return names & LASTING


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_what_lasts_is_renewed_in_forked_children(path: Path) -> None:
    """A class that keeps locks, threads or futures in its instances renews them; so does a module."""
    text = path.read_text()
    tree = ast.parse(text)
    keeping = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(
            isinstance(each, ast.Assign | ast.AnnAssign)
            and each.value is not None
            and _made_in(each.value)
            and any(
                isinstance(target, ast.Attribute)
                for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
            )
            for each in ast.walk(node)
        )
        and not re.search(
            r"^    def renew_after_fork", ast.get_source_segment(text, node) or "", re.MULTILINE
        )
    }
    loose = any(
        isinstance(each, ast.Assign | ast.AnnAssign) and _made_in(each) for each in tree.body
    )

    assert keeping - WITHIN_A_CALL == set()
    assert not loose or "run_in_forks" in text


def test_no_lock_is_shared_by_all_instances() -> None:
    """``functools.cached_property`` has one, in the oldest Python; ``core.lazy`` has none."""
    users = [module_name(path) for path in MODULES if "import cached_property" in path.read_text()]

    assert users == []


def _lines_of_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Explaining parameters makes nothing harder to read."""
    first = function.body[0]
    explained = ast.get_docstring(function) is not None
    return (first.end_lineno or 0) - first.lineno + 1 if explained else 0


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_files_and_functions_stay_readable(path: Path) -> None:
    """No file, function or name grows into something that holds everything."""
    text = path.read_text()
    functions = [
        (node.name, (node.end_lineno or 0) - node.lineno + 1 - _lines_of_docstring(node))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    assert len(text.splitlines()) <= LONGEST_FILE
    assert [each for each in functions if each[1] > LONGEST_FUNCTION] == []
    assert path.stem not in FORBIDDEN_NAMES
    assert ast.get_docstring(ast.parse(text)), "a module says what it owns"


def test_async_stands_where_others_ask_for_it() -> None:
    """Everything is written once, synchronously; zarr's interfaces and fsspec's are the exceptions."""
    users = {
        module_name(path)
        for path in MODULES
        if any(
            isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(ast.parse(path.read_text()))
        )
    }

    on_fsspecs_loop = {f"{PACKAGE}.storage.http", f"{PACKAGE}.storage.s3"}
    on_zarrs_loop = {f"{PACKAGE}.spark.writing.cells"}
    assert users - on_fsspecs_loop - on_zarrs_loop == {f"{PACKAGE}.zarr"}
