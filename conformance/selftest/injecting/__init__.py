"""How a fault gets into a real worker: hook points around an engine, a switch for each variant."""
