"""Run pytest in a child process, and report how that process and its workers ended.

    python -m tests.supervised [PYTEST OPTION …]

An extension that crashes while an interpreter shuts down does so after pytest's summary: "7113
passed" is then followed by a bare "Segmentation fault", or, in a worker of pytest-xdist, by
nothing. Both are failures here, with a line that says what ended. As a plug-in
(`pytest -p tests.supervised`) this module looks after the workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

#: Names the file that pytest writes its exit status into, after its summary.
FINISHED = "CONFORMANCE_TESTS_FINISHED"


def describe_end(code: int, finished: str) -> str:
    """Return what to say about pytest's return code; "" for one that pytest itself chose.

    `finished` is the exit status that pytest wrote after its summary, "" before it.
    """
    if code >= 0:
        return ""
    if not finished:
        return f"pytest itself was ended by {name_signal(-code)} before its summary."
    return (
        f"pytest itself was ended by {name_signal(-code)} after its summary, which it closed with "
        f"exit status {finished}: a crash while the interpreter shut down, and no test's failure."
    )


def name_signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


class Workers:
    """Checks the exit codes of pytest-xdist's workers: a controller does not read them."""

    def __init__(self) -> None:
        self.gateways: list[Any] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        self.gateways.append(gateway)

    def find_crashed(self) -> list[str]:
        """Name each worker that a signal ended, but for those that the controller killed."""
        ends = [(each.id, each._io.popen.wait()) for each in self.gateways]
        return [
            f"worker {name} by {name_signal(-code)}"
            for name, code in ends
            if code < 0 and code != -signal.SIGKILL
        ]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Workers(), "supervised-workers")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Outermost, so that the rest comes after the summary."""
    yield
    workers = session.config.pluginmanager.get_plugin("supervised-workers")
    if crashed := workers.find_crashed():
        print(f"\nThe tests passed or failed as above, and then ended: {', '.join(crashed)}.")
        session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR
    if path := os.environ.get(FINISHED):
        Path(path).write_text(str(int(session.exitstatus)))


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        finished = Path(folder) / "finished"
        # faulthandler: the stacks of a crash, also of one after pytest has let go of its own.
        command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", __spec__.name]
        pytest_process = subprocess.Popen(
            [*command, *arguments], env={**os.environ, FINISHED: str(finished)}
        )
        # A terminal's Ctrl-C reaches both; whoever ends this process by its id means pytest.
        signal.signal(signal.SIGTERM, lambda number, _: pytest_process.send_signal(number))
        code = pytest_process.wait()
        words = describe_end(code, finished.read_text() if finished.exists() else "")
    if words:
        print(words, file=sys.stderr, flush=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
