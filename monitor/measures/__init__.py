"""Measures of ranking quality: their text, their kernels, and the labels that they are computed from. Pure."""
