"""Watches ranking models in production: rankings and labels in, quality series and Prometheus gauges out."""

import os

__version__ = "0.1.0"

# Our matrices are small: more threads compute them no faster, and to start them takes longer than a short command.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
