"""Compare and identify a trace's values: known values, effects of writes, and distances."""
