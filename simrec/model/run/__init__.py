"""How a fit runs: workers, checkpoints, progress."""
