"""A run as one page to show: its facts, charts and tables in a file that needs nothing else."""
