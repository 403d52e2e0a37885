"""What it costs to move a prefix: real bytes between a cache and what is beyond it."""
