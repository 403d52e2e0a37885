"""What a trace can reuse: exact hit curves, strategies for windows and states, engines' rules."""
