"""The three systems told again in the plainest way, to be measured next to."""
