"""Move real prefixes between a cache and tiers, or another cache, and time it."""
