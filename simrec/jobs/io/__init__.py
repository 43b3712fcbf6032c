"""What batch jobs read and write: sources, outputs and their parts."""
