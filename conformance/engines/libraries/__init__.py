"""Other interpretability libraries as engines, one module each."""
