"""The low-rank adapter (LoRA) of a model, stored in PEFT's format in its checkpoint."""

from __future__ import annotations

from pathlib import Path

#: The adapter's folder, relative to the checkpoint's.
FOLDER = "adapter"


def adapter_of(checkpoint: Path) -> Path | None:
    """Return the folder of the checkpoint's adapter, or None if it has none."""
    folder = checkpoint / FOLDER
    return folder if (folder / "adapter_config.json").is_file() else None
