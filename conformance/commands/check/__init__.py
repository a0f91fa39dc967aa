"""`conformance check`: does a user's own trace compute the same on vLLM as on transformers?

user_file (parses the file, never imports it) → gather (runs the workers) → answer (judges, and
identifies wrong values) → searching (runs edits of the file in the engines) → kept (stores a run).
"""
