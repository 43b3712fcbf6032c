"""The similarity encoder: open this to change how features become embeddings."""
