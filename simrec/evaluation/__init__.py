"""Baselines, the four-task table, comparisons, the report."""
