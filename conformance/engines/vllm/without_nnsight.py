"""An engine that does not start is asked again without nnsight: whose error is it?

    python -m conformance.engines.vllm.without_nnsight CHECKPOINT '{"dtype": "float32", …}'

in a process of its own, for what has failed to start may have left anything behind. Its error is
compared with the one that was raised through nnsight.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from conformance.errors import described

#: Ends the words of an error that is the engine's own (`judge.attribution`).
TOO = "(vLLM raises this without nnsight too)"
#: Seconds that an engine has to start or fail in.
_PATIENCE = 120.0
#: So much of an error's last line has to be the same.
_LINE = 160


class RaisedWithoutNnsightError(RuntimeError):
    """The engine's own error."""


def own_error(error: Exception, checkpoint: str, arguments: Mapping[str, Any]) -> Exception | None:
    """The error as the engine's own, where it raises the same by itself; None where it does not,
    or did not say in time.
    """
    line = _last_line(str(error))
    if not line:
        return None
    command = [sys.executable, "-m", __name__, checkpoint, json.dumps(dict(arguments), default=str)]
    surroundings = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
            env=surroundings,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    same = done.returncode != 0 and line in done.stderr
    return RaisedWithoutNnsightError(f"{described(error)} {TOO}") if same else None


def _last_line(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1][:_LINE] if lines else ""


def main(checkpoint: str, arguments: str) -> None:
    """Start vLLM as its users do."""
    from vllm import LLM

    LLM(checkpoint, **json.loads(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
