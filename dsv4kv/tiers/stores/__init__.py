"""Where objects are kept: one file per kind of store."""
