"""Modules imported by name inside the processes that vLLM starts."""
