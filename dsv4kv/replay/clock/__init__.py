"""How long a step of a server takes, by which source, and how far that may be off."""
