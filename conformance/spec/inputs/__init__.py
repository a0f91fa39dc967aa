"""Read what a user writes: models.yaml and the project's table; locate the built-in files."""
