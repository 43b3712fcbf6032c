"""What several jobs need: the model they work with, vectors by id, candidates to recommend."""
