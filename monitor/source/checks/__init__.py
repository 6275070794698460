"""Mapping checks: tables and columns, types, and a data sample."""
