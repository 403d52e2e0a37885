"""The main command: build a cache, serve a workload, record what happened."""
