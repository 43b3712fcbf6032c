"""How well an item will be liked: open this to change how ratings are learned."""
