"""Starts an engine without nnsight to find out whether an error is vLLM's own.

    python -m conformance.engines.vllm.without_nnsight CHECKPOINT '{"dtype": "float32", …}'

It runs in a new process, since a failed start may leave anything behind. Its error is compared with
the one raised through nnsight.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from conformance.errors import described

#: The end of the message of an engine's own error (`judge.cell.attribution`).
TOO = "(vLLM raises this without nnsight too)"
#: Seconds in which an engine must start or fail.
_PATIENCE = 120.0
#: How many characters of an error's last line must match.
_LINE = 160


class RaisedWithoutNnsightError(RuntimeError):
    """An error that vLLM raises without nnsight too."""


def own_error(error: Exception, checkpoint: str, arguments: Mapping[str, Any]) -> Exception | None:
    """Return the error, marked as the engine's, if vLLM raises the same without nnsight; None if it
    does not, or not in time.
    """
    lines = str(error).strip().splitlines()
    if not lines:
        return None
    command = [sys.executable, "-m", __name__, checkpoint, json.dumps(dict(arguments), default=str)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
            env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode == 0 or lines[-1].strip()[:_LINE] not in done.stderr:
        return None
    return RaisedWithoutNnsightError(f"{described(error)} {TOO}")


if __name__ == "__main__":
    from vllm import LLM

    LLM(sys.argv[1], **json.loads(sys.argv[2]))
