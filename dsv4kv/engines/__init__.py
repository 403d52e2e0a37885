"""The engines whose sizing rules are known, by name and version."""
