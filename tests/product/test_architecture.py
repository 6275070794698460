"""What may import what, read from the sources: a pure core, adapters unaware of each other, one app that builds."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "monitor"

CLASSES_OF_CONFIGURATION = {"pydantic", "pydantic_core"}
"""Libraries that declare configuration classes: values and checks, no effects."""

IMPURE = {"asyncio", "io", "logging", "os", "pathlib", "random", "shutil", "socket", "sqlite3", "subprocess"}
IMPURE |= {"sys", "tempfile", "threading", "time", "urllib", "http"}
"""Standard-library modules that have effects or read the clock."""

CLOCKS = {"now", "utcnow", "today", "fromtimestamp", "localtime"}
"""datetime functions that read the machine's clock or time zone; `fromtimestamp` only when given no zone."""

PURE = (
    "arrays",
    "codec",
    "types",
    "fields",
    "section",
    "units",
    "routing",
    "measures",
    "series",
    "conditions",
    "drift",
    "causes",
    "messages",
)
"""The packages that only compute: no clock, no file, no database, no logging."""

ADAPTERS = ("source", "store", "config", "page", "web", "notify")
SHARED = (*PURE, "config", "errors", "database_url", "clock", "tls")
VALUES = ("snapshot", "telemetry", "history", "slice_comparison", "reporting", "fall")
SHOWN = tuple(f"monitor.service.{name}" for name in VALUES)
"""Plain values an adapter may import in addition to pure packages. `/metrics` and pages show snapshots and reports."""

READ = {"config": ("monitor.source.dialects",)}
"""The configuration parses a `select:` by the rules of its database; a dialect is a plain value."""

FRAMES = {"web": {"page"}, "config": {"notify"}}
"""Adapters that may import another: the site serves the page, the configuration holds each channel's section."""

BUILT = {"Store", "Database", "Pull", "PushDown", "WebServer", "JobScheduler"}
BUILDERS = ("monitor.service.app", "monitor.cli")
SPEAKERS = ("cli", "demo")
LONGEST = 40


@dataclass(frozen=True)
class Module:
    """A source file under its dotted name."""

    name: str
    path: Path

    @property
    def part(self) -> str:
        """`store` of `monitor.store.engine`; empty for the package itself."""
        return self.name.split(".")[1] if "." in self.name else ""

    @property
    def tree(self) -> ast.Module:
        return parsed(self.path)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def read() -> dict[str, Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_migrations" in path.parts:
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


MODULES = read()
FOLD = ("fold", "condition_sets", "arrival_conditions")
"""The modules that evaluate: they get hours and return a checkpoint and events."""
CORE = [m for m in MODULES.values() if m.part in PURE or m.name in {f"monitor.evaluation.{name}" for name in FOLD}]


def imports(module: Module) -> Iterator[str]:
    """Dotted names of everything a module imports; for `from package import module`, the module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name} imports relatively"
            base = node.module or ""
            yield from (f"{base}.{a.name}" if f"{base}.{a.name}" in MODULES else base for a in node.names)


def own(module: Module) -> set[str]:
    return {name for name in imports(module) if name.split(".")[0] == "monitor"} - {module.name, "monitor"}


def calls(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """(last name, node) of every call."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id, node
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr, node


def at(module: Module, node: ast.expr | ast.stmt) -> str:
    return f"{module.path.relative_to(ROOT)}:{node.lineno}"


def each(modules: list[Module]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("module", modules, ids=[m.name for m in modules])


@each(CORE)
def test_a_pure_package_imports_only_pure_packages(module: Module) -> None:
    assert {name for name in own(module) if name.split(".")[1] not in PURE} - {m.name for m in CORE} == set()


@each(CORE)
def test_a_pure_package_uses_only_allowed_libraries(module: Module) -> None:
    found = {name.split(".")[0] for name in imports(module) if name != "urllib.parse"}
    outside = found - {"monitor", "numpy", "pandas"} - CLASSES_OF_CONFIGURATION
    outside -= {"jinja2"} if module.part == "messages" else set()
    assert outside - sys.stdlib_module_names == set()
    assert outside & IMPURE == set()


@each(CORE)
def test_a_pure_package_reads_no_clock_and_no_file(module: Module) -> None:
    found = [
        at(module, node)
        for name, node in calls(module)
        if name in {"open", "print", "input"} | CLOCKS and not (name == "fromtimestamp" and len(node.args) > 1)
    ]
    assert found == []


@each([m for m in MODULES.values() if m.part in ADAPTERS])
def test_an_adapter_imports_no_other_adapter(module: Module) -> None:
    allowed = {*SHARED, module.part, *FRAMES.get(module.part, ())}
    known = (*SHOWN, *READ.get(module.part, ()))
    others = {name for name in own(module) if name.split(".")[1] not in allowed and not name.startswith(known)}
    assert others == set()


@each([m for m in MODULES.values() if not m.name.startswith(BUILDERS)])
def test_only_the_app_and_the_command_line_construct_effectful_classes(module: Module) -> None:
    defined = {
        n.name for m in MODULES.values() if m.part == module.part for n in m.tree.body if isinstance(n, ast.ClassDef)
    }
    assert [f"{at(module, node)} {name}" for name, node in calls(module) if name in BUILT - defined] == []


def test_effectful_class_names_exist() -> None:
    classes = {n.name for m in MODULES.values() for n in m.tree.body if isinstance(n, ast.ClassDef)}
    assert classes >= BUILT


def test_modules_have_no_import_cycle() -> None:
    try:
        order = list(TopologicalSorter({m.name: own(m) for m in MODULES.values()}).static_order())
    except CycleError as error:
        pytest.fail("these import each other in a ring: " + " <- ".join(error.args[1]))
    assert len(order) >= len(MODULES) - 1


@each([m for m in MODULES.values() if m.part not in SPEAKERS])
def test_only_the_command_line_prints(module: Module) -> None:
    spoken = [at(module, node) for name, node in calls(module) if name in {"print", "echo", "secho"}]
    assert spoken == []
    assert {name for name in imports(module) if name.split(".")[0] in {"click", "rich"}} == set()


@each([m for m in MODULES.values() if m.part in SPEAKERS])
def test_the_command_line_prints_through_click_and_rich(module: Module) -> None:
    bare = [at(module, n) for name, n in calls(module) if name == "print" and isinstance(n.func, ast.Name)]
    assert bare == []


@each(list(MODULES.values()))
def test_functions_fit_on_a_screen(module: Module) -> None:
    functions = [n for n in ast.walk(module.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {f"{at(module, n)} {n.name}": length for n in functions if (length := body_length(n)) > LONGEST}
    assert long == {}


def body_length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's statements, without signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_public_class_names_are_unique() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module.name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}
