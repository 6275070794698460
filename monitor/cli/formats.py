"""`--format`, the same for every command that machines may read too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def format_option(*formats: str) -> Callable[[Any], Any]:
    """The option, whose argument is `style`; the first of the formats is what people read."""
    return click.option("--format", "style", type=click.Choice(formats), default=formats[0], show_default=True)
