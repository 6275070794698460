"""The state that judging carries survives JSON unchanged under every supported NumPy."""

from __future__ import annotations

from contextlib import suppress
from types import GenericAlias, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from monitor.arrays import Floats
from monitor.codec import decoded, encoded

NAMED: Any = GenericAlias(SimpleNamespace(__value__=np.ndarray[Any, Any]), (np.float64,))  # type: ignore[arg-type]
"""`NDArray[np.float64]` as NumPy 2.5 has it, on Python 3.12 and newer: the name of a type."""


@pytest.mark.parametrize("kind", [Floats, NAMED, NAMED | None], ids=["alias", "named", "named or none"])
def test_an_array_decodes_under_any_spelling_of_its_type(kind: Any) -> None:
    """On Python 3.13 all states were once read back as dictionaries, and judging failed on the second run."""
    found = decoded(kind, {"shape": [1, 2], "type": "<f8", "numbers": [0.1, 2.0]})
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [[0.1, 2.0]]


def test_a_damaged_array_is_either_read_or_refused_as_damaged() -> None:
    whole = encoded(np.arange(1000.0))
    for place in range(0, len(whole["base64"]), 7):
        text = whole["base64"]
        damaged = {**whole, "base64": text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]}
        with suppress(ValueError):  # whoever reads the store reports it as damage
            decoded(Floats, damaged)
    with pytest.raises(ValueError, match="damaged array"):
        decoded(Floats, {**whole, "base64": whole["base64"][:-8]})
