"""New entities: encoders of features against a frozen last layer, chosen on held-out entities."""
