"""Baselines, the four-task table, comparisons, replays, the report."""
