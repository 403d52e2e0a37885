"""Two sides held against each other: what may be compared, and what may be said."""
