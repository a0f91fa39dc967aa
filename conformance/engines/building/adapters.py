"""A model's low-rank adapter (LoRA), where it has one: in PEFT's format, in its checkpoint."""

from __future__ import annotations

from pathlib import Path

#: Below the checkpoint's folder.
FOLDER = "adapter"


def adapter_of(checkpoint: Path) -> Path | None:
    """The folder of the checkpoint's adapter, None where it has none."""
    folder = checkpoint / FOLDER
    return folder if (folder / "adapter_config.json").is_file() else None
