"""A running server is asked, from outside, what its prefix cache does."""
