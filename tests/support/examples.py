"""How many examples property tests try."""

import os

from hypothesis import settings


def examples(number: int) -> settings:
    """`number` of them, times RANKMON_TEST_EXAMPLES, however long each takes."""
    return settings(max_examples=times(number), deadline=None)


def times(number: int) -> int:
    """`number` times RANKMON_TEST_EXAMPLES."""
    return number * int(os.environ.get("RANKMON_TEST_EXAMPLES", "1"))
