"""How well an item will be liked: the rating part, its vectors, its output."""
