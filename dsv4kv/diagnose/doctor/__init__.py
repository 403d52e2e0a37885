"""What a machine has, what that makes possible, and what to do about what it lacks."""
