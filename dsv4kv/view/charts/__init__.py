"""Charts: each function takes numbers and gives a figure with a title and a description."""
