"""Hostile input by generation: for `make test`, and whole in bench/hostile_input.py."""
