"""Scores from embeddings (pairs, exact top-k), and metrics. NumPy in, NumPy out."""
