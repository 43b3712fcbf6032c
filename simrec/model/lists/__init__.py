"""Lists: components that each rank by a scalar product, and their blend."""
