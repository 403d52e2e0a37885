"""Whether an installed engine's own cache manager keeps what it promises."""
