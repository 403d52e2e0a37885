"""Serving a trace in virtual time: events are exact, their durations are a clock's."""
