"""A model's low-rank adapter (LoRA), where it has one: in PEFT's format, in its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Below the checkpoint's folder.
FOLDER = "adapter"


def adapter_of(checkpoint: Path) -> Path | None:
    """The folder of the checkpoint's adapter, None where it has none."""
    folder = checkpoint / FOLDER
    return folder if (folder / "adapter_config.json").is_file() else None


def rank(adapter: Path) -> int:
    """Of its matrices."""
    config: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    return int(config["r"])
