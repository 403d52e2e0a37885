"""Everything known about one engine: how it sizes, what it logs, how it caches and evicts."""
