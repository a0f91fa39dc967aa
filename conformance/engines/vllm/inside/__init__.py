"""Imported by name inside of the processes that vLLM starts."""
