"""Scores from embeddings: pairs, exact top-k. NumPy arrays in, NumPy arrays out."""
