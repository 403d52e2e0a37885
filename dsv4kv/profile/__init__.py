"""Profilers: how each is run and read, and the one form that all of them are read into."""
