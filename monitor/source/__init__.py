"""Reading rankings and labels from the user's database: read-only, bounded by time, streamed."""
