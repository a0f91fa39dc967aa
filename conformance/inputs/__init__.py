"""What a user writes: models.yaml, the project's table, and where the built-in files lie."""
