"""Uptake: implicit feedback by weighted least squares, a component of lists."""
