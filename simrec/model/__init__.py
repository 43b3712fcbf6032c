"""The models: `SimEc`, `TwoTower`, and what they are made of; TensorFlow lives only here."""
