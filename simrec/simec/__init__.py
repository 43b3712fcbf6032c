"""The similarity encoder, whole: open this to change how features become embeddings."""
