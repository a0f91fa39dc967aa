"""`conformance` whose every engine is one of `tests.faulty`: quick, and as wrong as wanted.

    python -m tests.faulty_command VERB …

Its checkpoint is found in the cache as if it had been built, and the reference refuses every
case, so that no column is held against anything. `workplace` writes the files that it reads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from conformance import engines
from conformance.spec import checkpoints
from conformance.spec.records import Source
from conformance_command import main
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent
SCENARIOS = ROOT / "tests" / "three_scenarios"


@dataclass(frozen=True)
class Workplace:
    """A folder with a manifest whose columns are engines of `tests.faulty`."""

    folder: Path

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tests.faulty_command", *arguments]

    @property
    def manifest(self) -> list[str]:
        """The options that say what there is to be run."""
        return ["--models", str(self.folder / "models.yaml"), "--scenarios", str(SCENARIOS)]

    def of_a_run(self, *arguments: str) -> list[str]:
        """With the options that say where everything is."""
        return self.command(*arguments, *self.manifest, "--reports", str(self.reports))

    def start(self, command: Sequence[str], **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "CONFORMANCE_CACHE": str(self.folder / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **more,
        )

    def ran(self, command: Sequence[str]) -> tuple[int, str]:
        """The exit code, and all that was printed."""
        process = self.start(command)
        output, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, output


def workplace(folder: Path, *columns: str, options: Mapping[str, Any] | None = None) -> Workplace:
    """`columns` are names in `tests.faulty`, `options` those of its engines."""
    weights = folder / "weights"
    weights.mkdir(parents=True)
    (weights / "config.json").write_text('{"model_type": "llama"}')
    backends = {
        name: {
            "engine": f"tests.faulty:{name}",
            "options": {
                "folder": str(folder),
                "noted": str(folder / f"noted-{name}"),
                "refuse": True,
                **(options or {}),
            },
        }
        for name in columns
    }
    model = {"architecture": "llama", "sources": [{"path": "weights"}]}
    text = json.dumps({"models": {"m": model}, "backends": backends})
    (folder / "models.yaml").write_text(text)
    source = Source("path", file=str(weights))
    place = checkpoints.place(source, "llama", folder / "cache")
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    checkpoints.seal(place, "fake", "llama", checkpoints.CheckpointShape(4, 8))
    return Workplace(folder)


def _fake() -> None:
    """In this process: the reference is a fake, and no zygote imports transformers."""
    cast(dict[str, str], engines.ENGINES)["reference"] = "tests.faulty:Refuses"
    cast(dict[str, str], engines.PRELOAD)["reference"] = ""


if __name__ == "__main__":
    _fake()
    main()
