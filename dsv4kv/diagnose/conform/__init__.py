"""A model checker for the cache manager of an installed engine."""
