"""``bench systems``: the cache in the three configurations that it grew from, on one workload."""
