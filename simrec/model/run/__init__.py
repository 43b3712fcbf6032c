"""How a fit runs: workers and progress."""
