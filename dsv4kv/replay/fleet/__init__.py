"""Several servers behind a router, in virtual time."""
