"""Running: plans become jobs, worker processes run them, and their observations are stored."""
