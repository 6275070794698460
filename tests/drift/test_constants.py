"""Every constant behind a verdict is in one table, with its source or a test that pins it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from monitor.drift import constants

ROOM = Path(constants.__file__).parent
LINES = re.findall(r"^([A-Z_]+) = (.+)$", Path(constants.__file__).read_text(encoding="utf-8"), re.MULTILINE)
MOST = 127
"""There used to be some 160 in twenty modules, and nine more inside functions. One more needs a good reason."""
NUMERICAL = {"power.py", "state.py"}
"""Bisection rounds, and the size from which arrays are compressed: no verdict depends on them."""


def test_the_number_of_constants_stays_within_its_limit() -> None:
    assert len(LINES) <= MOST


def _tests(comment: str) -> list[tuple[str, str]]:
    return re.findall(r"(test_\w+): (\w+)", comment)


@pytest.mark.parametrize(("name", "line"), LINES)
def test_each_constant_has_a_reason_and_names_existing_tests(name: str, line: str) -> None:
    _, _, reason = line.partition("  # ")
    assert len(reason) > 8, name
    for file, part in _tests(reason):
        tests = (Path(__file__).parent / f"{file}.py").read_text(encoding="utf-8")
        assert re.search(rf"def test_\w*{part}", tests), f"{name}: {file} has no test {part}"


@pytest.mark.parametrize("name", [name for name, _ in LINES])
def test_each_constant_is_used(name: str) -> None:
    texts = (p.read_text(encoding="utf-8") for p in ROOM.glob("*.py"))
    assert any(re.search(rf"\bc\.{name}\b|\b{name}[ ,)+/]", text.replace(f"{name} = ", "")) for text in texts)


@pytest.mark.parametrize(
    "file", sorted(p.name for p in ROOM.glob("*.py") if p.name not in {"constants.py", *NUMERICAL})
)
def test_no_other_module_defines_constants(file: str) -> None:
    """Column names, and times in seconds, do not count."""
    found = ast.parse((ROOM / file).read_text(encoding="utf-8")).body
    assigned = (node for node in found if isinstance(node, ast.Assign))
    assert not [ast.unparse(one) for one in assigned if any(_is_fraction(part) for part in ast.walk(one))]


def _is_fraction(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)
