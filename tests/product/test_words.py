"""Plain English: the tics of earlier texts stand in no text, docstring or template of the package."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "monitor"
BANNED = re.compile(
    r"\b(anew|besides?|of late|no more(?! than)|there is to say|as good as|is told|comes to|amid|as where|at the most"
    r"|behind by|for ever|goes on|graver|gravest|has come|in place of|is had|mended|on its way back|one's own|put into"
    r"|steps aside|stepped aside|stands twice|such that|take it (?:out|away)|there twice|too good|well again)\b",
    re.IGNORECASE,
)

FIELDS = re.compile(r"^ *\w+: ", re.MULTILINE)
"""Names of fields in a docstring."""

ROOMS = sorted({path.parent.relative_to(PACKAGE).parts[:1] for path in PACKAGE.rglob("*.py")})


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every text and docstring of a module, and of a template as a whole."""
    if path.suffix != ".py":
        yield 1, path.read_text(encoding="utf-8")
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def tics(room: str) -> list[str]:
    """Where a banned word stands in a room."""
    inside = (PACKAGE / room).rglob("*") if room else PACKAGE.glob("*.py")
    files = [path for path in inside if path.suffix in (".py", ".txt", ".html") and "_migrations" not in path.parts]
    return [
        f"{path.relative_to(PACKAGE)}:{line}: {found[0]}"
        for path in sorted(files)
        for line, text in texts(path)
        for found in BANNED.finditer(FIELDS.sub("", text))
    ]


@pytest.mark.parametrize("room", [room for (room,) in (parts or ("",) for parts in ROOMS)])
def test_a_room_is_in_plain_english(room: str) -> None:
    assert tics(room) == []
