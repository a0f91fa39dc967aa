"""How long a test waits for what should come soon.

A limit in a test finds what never comes. On two cores that others use as well, "soon" has been
thirty times what it is alone, and a shorter limit only finds that.
"""

#: Seconds.
PATIENCE = 150.0
