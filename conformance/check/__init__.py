"""Is a user's own trace the same on vLLM? `conformance check`.

source (the file, parsed and never imported here) → gather (workers) → answer (the judge, and what
a value holds instead) → searching (edits of the file, run in the engines) → kept (as a run is).
"""
