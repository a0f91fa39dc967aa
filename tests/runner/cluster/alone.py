"""What wants its own process: `python -m tests.runner.cluster.alone listens|full …` prints JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from conformance.runner.cluster import Address, connect
from conformance.runner.processes import sessions, temporary
from conformance.runner.scheduling import GroupStarted, run
from tests.faulty_run import group
from tests.runner.cluster.nodes import LIMITS, nodes, planned

_STRANGER = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"


def listens() -> dict[str, Any]:
    """A cluster that is started here: where it listens, and how a stranger fares."""
    os.environ.pop("RAY_ADDRESS", None)
    with connect(Address()) as joined:
        everyone = sessions.descendants(os.getpid()) | {os.getpid()}
        places = sorted(sessions.listening(everyone))
        own = psutil.Process().cmdline()  # and of who sees to it that nothing is left
        unmarked = [
            pid for pid in everyone - sessions.of_runs() if _read_words(pid) not in ([], own)
        ]
        secret = os.environ["RAY_AUTH_TOKEN"]
        told = [pid for pid in everyone if secret in " ".join(_read_words(pid))]
        folders = [*Path(tempfile.gettempdir()).glob(f"{temporary.PREFIX}*")]
        opened = [path.name for path in folders if path.stat().st_mode & 0o077]
        address = joined.ray.get_runtime_context().gcs_address
        stranger = {name: value for name, value in os.environ.items() if "RAY_AUTH" not in name}
        command = [sys.executable, "-c", _STRANGER, address]
        begun = subprocess.Popen(command, env=stranger, stderr=subprocess.PIPE, text=True)
        words = ""
        # It would try for minutes: its first word is enough.
        for line in begun.stderr or ():
            words += line
            if "Unauthenticated" in line:
                break
        begun.kill()
        found = {"places": places, "unmarked": unmarked, "told": told, "opened": opened}
        return {**found, "folders": len(folders), "stranger": begun.wait(), "words": words}


def _read_words(pid: int) -> list[str]:
    """Return the command line of a process; empty where it has ended in between."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def full(small: str, folder: Path) -> dict[str, Any]:
    """A node with a small disk, and one that is there when the first has begun, or cannot."""
    words: list[str] = []
    with nodes() as cluster:
        cluster.add("small", TMPDIR=small)
        with connect(cluster.address) as joined:
            surveyed = " ".join(machine.cannot for machine in joined.machines)
            if surveyed.strip():
                cluster.add("large")
        with connect(cluster.address) as joined:

            def tell(event: Any) -> None:
                if isinstance(event, GroupStarted) and len(joined.machines) == 2 and not words:
                    words.append("")
                    cluster.add("large")

            from conformance.runner.cluster import remote_jobs

            elsewhere = remote_jobs.OnRay._elsewhere

            def noted(self: Any, away: Any, node: str, cannot: str, *, at_all: bool) -> None:
                words.append(cannot)
                elsewhere(self, away, node, cannot, at_all=at_all)

            remote_jobs.OnRay._elsewhere = noted  # type: ignore[method-assign]
            summary = run(
                [planned("FillsItsDisk", folder)],
                logs=folder / "logs",
                limits=LIMITS,
                device="home",
                on_event=tell,
                allocate=joined.allocate(LIMITS),
            )
    record = group(folder, "FillsItsDisk").group()
    done = summary.done["FillsItsDisk"]
    return {
        "ok": done.ok,
        "reason": done.reason,
        "words": " ".join(words),
        "surveyed": surveyed,
        "lost": list(record.lost) if record else None,
    }


def main(what: str, arguments: Sequence[str]) -> None:
    said = listens() if what == "listens" else full(arguments[0], Path(arguments[1]))
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
