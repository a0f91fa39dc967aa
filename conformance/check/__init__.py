"""Is a user's own trace the same on vLLM? `conformance check`.

source (the file, parsed and never imported here) → gather (workers) → compare (the judge, and
what a value holds instead) → answer (words, the line, the edit that mends it).
"""
