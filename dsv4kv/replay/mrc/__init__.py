"""Hit rates of a trace by capacity, and what strategies and engines make of it."""
