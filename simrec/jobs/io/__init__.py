"""What jobs read and write: tables, the model, vectors by id, candidates; outputs and locks."""
