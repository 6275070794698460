"""Seconds of an hour, a day and a week, and spans of seconds."""

HOUR = 3_600
DAY = 24 * HOUR
WEEK = 7 * DAY

Span = tuple[int, int]
"""[since, until) seconds."""
