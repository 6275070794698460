"""Slices that alert rules judge and the data do not have, for `check-config --connect`: such a rule can never fire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from monitor.series.partials import RESERVED, named
from monitor.series.readings import Reading
from monitor.source.remark import FEWEST, Remark, instead
from monitor.types import Monitor


def unseen(monitor: Monitor, reading: Reading) -> Iterator[Remark]:
    """Values that rules name and no request of the sample has, though the requests have others of that dimension."""
    for number, rule in enumerate(monitor.alerts):
        for place, (dimension, value) in enumerate(rule.slices):
            seen = Counter(map(named, reading.slices.get(dimension, ())))
            there = [name for name, _ in seen.most_common() if name not in RESERVED]
            if value is None or value in RESERVED or value in there or seen.total() < FEWEST or not there:
                continue
            text = f"none of the {seen.total():,} requests looked at has {dimension}={value}, and without one "
            text += f"rule {rule.name} cannot fire on it; {instead(value, there)}"
            yield Remark(("alerts", number, "slices", place), text)
