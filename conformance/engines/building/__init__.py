"""Building a checkpoint on disk from an entry of models.yaml."""
