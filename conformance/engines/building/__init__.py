"""From an entry of models.yaml to a checkpoint on disk."""
