"""Counts in words."""

_PLURALS = {"grade above max": "grades above max", "mixed query": "mixed queries"}


def counted(number: int, noun: str) -> str:
    """How many of what; a reason of refusal is a noun too.

    >>> counted(1, "monitor"), counted(2000, "late_event"), counted(2, "mixed_query")
    ('1 monitor', '2,000 late events', '2 mixed queries')
    """
    one = noun.replace("_", " ")
    return f"{number:,} {one if number == 1 else _PLURALS.get(one, one + 's')}"
