"""Two sides compared: what may be compared, and what follows from it."""
