"""Three systems that keep a KV cache, run on real data and timed next to plain re-statements."""
