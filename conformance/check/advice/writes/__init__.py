"""What a write did, or what its value is made of, and the line that mends it."""
