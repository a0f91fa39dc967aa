"""Whose code a worker hung in."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.runner.scheduling.deaths import in_the_trace
from conformance.spec.records import Frame, Owner

STACKS = """\
Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/venv/lib/python3.11/site-packages/nnsight/mediator.py", line 12 in wait
  File "<nnsight 4 at /scen/hangs.py>", line 3 in block

Current thread 0x00007e (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 629 in wait
  File "{file}", line 12 in __inner__
  File "/venv/lib/python3.11/site-packages/nnsight/run.py", line 9 in run
"""


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("<nnsight 4>", "<nnsight 4>"),
        ("/scen/hangs.py", "scen/hangs.py"),
        ("/venv/lib/python3.11/site-packages/vllm/core.py", ""),
    ],
)
def test_a_block_that_waits_is_distinguished_from_one_that_waits_for_the_engine(
    file: str, name: str
) -> None:
    found = in_the_trace(STACKS.format(file=file), [Path("/scen")])
    assert found == ((Frame(Owner.SCENARIO, name, 12),) if name else ())
