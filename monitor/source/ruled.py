"""Slices that alert rules judge and the data do not have, for `check-config --connect`: such a rule can never fire."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence

from monitor.core.tally import RESERVED, Reading, named
from monitor.core.types import Monitor
from monitor.source.remark import FEWEST, Remark, shown

MOST_VALUES = 8
"""Values of a dimension that are named."""


def unseen(monitor: Monitor, reading: Reading) -> Iterator[Remark]:
    """Values that rules name and no request of the sample has, though the requests have others of that dimension."""
    for number, rule in enumerate(monitor.alerts):
        for place, (dimension, value) in enumerate(rule.slices):
            seen = Counter(map(named, reading.slices.get(dimension, ())))
            there = [name for name, _ in seen.most_common() if name not in RESERVED]
            if value is None or value in RESERVED or value in there or seen.total() < FEWEST or not there:
                continue
            text = f"none of the {seen.total():,} requests looked at has {dimension}={value}, and without one "
            text += f"rule {rule.name} cannot fire on it; {_instead(value, there)}"
            yield Remark(("alerts", number, "slices", place), text)


def _instead(value: str, there: Sequence[str]) -> str:
    """The values that there are, with the one that may be meant in front."""
    folded = {name.casefold(): name for name in reversed(there)}
    close = difflib.get_close_matches(value.casefold(), folded, 1)
    meant = f"did you mean {folded[close[0]]!r}? " if close else ""
    more = ", …" if len(there) > MOST_VALUES else ""
    return f"{meant}there are {', '.join(map(shown, there[:MOST_VALUES]))}{more}"
