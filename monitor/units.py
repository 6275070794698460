"""Seconds of an hour, a day and a week."""

HOUR = 3_600
DAY = 24 * HOUR
WEEK = 7 * DAY
