"""Where the pieces of a batch job run: in this process, or on Ray."""
