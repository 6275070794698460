"""Drift verdicts: the stored hourly partials of one measure, judged against a baseline fitted on them."""

VERSION = 37
"""Version of the algorithm. Raise it with any change that could alter a verdict: all are then judged again."""
