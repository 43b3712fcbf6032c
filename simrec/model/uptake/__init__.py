"""What a user takes up at all: open this to change how lists are learned."""
