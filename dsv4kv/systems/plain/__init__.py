"""The three systems restated in the plainest way, to be measured next to."""
