"""A model for other systems: SavedModel, tower, Faiss, vectors."""
