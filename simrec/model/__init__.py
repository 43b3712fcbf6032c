"""`TwoTower`: two towers that score a user and an item by one scalar product."""
