"""What it costs to move a prefix: real bytes between a cache and tiers, or another cache."""
