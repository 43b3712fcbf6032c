"""What happens to a fitted model: new entities, new ratings, entities removed."""
