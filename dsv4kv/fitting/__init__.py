"""Coefficients of the clock from what a user's own server was measured at."""
