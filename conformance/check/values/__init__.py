"""What the values of a trace hold, by their numbers: which known value, which write, how far."""
