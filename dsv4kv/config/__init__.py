"""Configurations of every command: their schema, files, overrides and sweeps."""
