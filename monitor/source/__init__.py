"""Reads rankings and labels from the user's database: read-only, time-bounded, streamed."""
