"""A model for other systems: SavedModel, tower, vectors."""
