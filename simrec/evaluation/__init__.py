"""Metrics over arrays, baselines, and the four-task table."""
