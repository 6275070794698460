"""A picture as PNG, with the extra `charts`. It brings its own font, because containers have none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from monitor.database_url import how_to_install
from monitor.errors import InputError

FONT = Path(__file__).parent / "font" / "DejaVuSans.ttf"


def can_draw() -> bool:
    """Whether the extra is installed."""
    return find_spec("resvg_py") is not None


def as_png(svg: str) -> bytes:
    """The PNG of an SVG document, in its size. Raises InputError without the extra."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise InputError(f"a PNG needs resvg; {how_to_install('charts')}, or write an SVG") from error
    drawn: bytes = svg_to_bytes(svg_string=svg, skip_system_fonts=True, font_files=[str(FONT)])
    return drawn
