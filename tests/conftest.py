"""What holds for every test."""

from hypothesis import settings

# Two cores shared with engines: an example that took 200 ms says nothing about the code.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
