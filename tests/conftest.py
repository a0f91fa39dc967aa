"""What holds for every test."""

import signal

from hypothesis import settings

# Some tests interrupt a run of their own. What nohup, or a shell's background job, has ignored
# for pytest would stay ignored in it, rightly, and the test would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Two cores shared with engines: an example that took 200 ms says nothing about the code.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
