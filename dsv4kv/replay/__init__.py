"""Serving a trace in virtual time: what happens is exact, what it takes a clock says."""
