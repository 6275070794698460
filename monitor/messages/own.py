"""The user's message templates, which replace built-in ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

REPLACEABLE: Mapping[str, str] = {
    "title": "the title, one line",
    "page": "the text, five lines as built in",
    "details": "everything else; may be empty",
}
"""The templates of a notification, which a user may replace."""

BUILT_IN = "rankmon/"
"""Prefix of the built-in templates inside a user's templates."""


@dataclass(frozen=True)
class OwnTemplate:
    """A user's template that replaces the built-in one of that name; `path` is its file."""

    name: str
    path: str
    text: str


class TemplateFault(Exception):
    """Why a user's template failed; line 0 if unknown."""

    def __init__(self, template: OwnTemplate, line: int, text: str) -> None:
        self.template, self.text = template, text
        super().__init__(f"{template.path}{f':{line}' if line else ''}: {text}")
