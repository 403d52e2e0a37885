"""What is replayed: requests, their traces, and the loop that serves them."""
