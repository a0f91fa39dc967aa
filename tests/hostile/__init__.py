"""Files that a stranger wrote, and damaged ones."""
