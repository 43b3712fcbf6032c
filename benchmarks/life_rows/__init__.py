"""The rows of the life benchmark, each a module."""
