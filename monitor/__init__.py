"""Watches ranking models in production: rankings and labels in, quality series and Prometheus gauges out."""

__version__ = "0.1.0"
