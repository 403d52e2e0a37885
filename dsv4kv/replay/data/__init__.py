"""``workload.data: real``: the work of a replay's steps, done and checked."""
