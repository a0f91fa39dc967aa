"""What a returned value is made of, and the line that reads it otherwise than `hf` does."""
