"""Measures of ranking quality: their text, their kernels, and the labels they are computed from. Pure."""
