"""How a TwoTower learns."""
