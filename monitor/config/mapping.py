"""What all mappings of the configuration file have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict


class Shape(BaseModel):
    """A mapping of known keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    def given(self, *names: str) -> list[str]:
        """Those of the keys that stand in the file."""
        return [n for n in names if getattr(self, n) is not None]


def just_one(shape: Shape, *names: str) -> None:
    given = shape.given(*names)
    if not given:
        *others, last = (f"`{n}:`" for n in names)
        raise ValueError(f"needs {', '.join(others)} or {last}")
    not_both(shape, *names)


def not_both(shape: Shape, *names: str) -> None:
    if len(given := shape.given(*names)) > 1:
        raise ValueError(f"has {' and '.join(f'`{n}:`' for n in given)}; keep just one of them")


def one_required(*names: str) -> JsonDict:
    return {"oneOf": [{"required": [n]} for n in names]}
