"""nnterp 1.3.0 asks for `nnsight>=0.6`, and cannot be imported beside nnsight 0.8.1.

    pip install nnterp==1.3.0 nnsight==0.8.1
    python nnterp_import.py        # exits 1 while it cannot

It imports from `nnsight.intervention.tracing`, which nnsight 0.8.0 and 0.8.1 have no longer; with
0.7.0 it can be imported. Needs both libraries and nothing of a model hub.
"""

import sys
from importlib import metadata

asked = [line for line in metadata.requires("nnterp") or [] if line.startswith("nnsight")]
print("nnterp", metadata.version("nnterp"), "nnsight", metadata.version("nnsight"))
print("nnterp asks for", *asked)
try:
    import nnterp
except ModuleNotFoundError as error:
    print(f"ModuleNotFoundError: {error}")
    sys.exit(1)
print("imported from", nnterp.__name__)
