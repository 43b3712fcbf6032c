"""`method="simec"`: the two similarity encoders one after the other, as the mission orders them."""
