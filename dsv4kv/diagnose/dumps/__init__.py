"""Pages of other people's caches, as files: which record they hold, and their faults."""
