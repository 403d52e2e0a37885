"""Recordings of a running server: its KV events, requests and metrics.

A recording is an append-only folder of lines. Whatever identifies a prompt, session or user is
replaced before it is written by numbers keyed with the recording's secret, equal where the
originals were equal. A data set of conversations becomes a trace by the same numbers.
"""
