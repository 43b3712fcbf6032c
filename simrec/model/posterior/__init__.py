"""Known entities: posteriors of embeddings around what features and history say."""
