"""Checks of a mapping: by its tables and columns, by types, and by a look at a sample of the data."""
