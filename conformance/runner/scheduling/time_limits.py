"""How long a worker may take for each phase."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class TimeLimits:
    """Time limits in seconds: for a cell, a load, the shutdown after the last cell, and the imports
    of a zygote.
    """

    cell: float = 60.0
    load: float = 300.0
    close: float = 20.0
    imports: float = 300.0

    def of(self, phase: str) -> tuple[float, str]:
        """Return the limit of a phase, and the message for a worker that exceeds it."""
        match phase:
            case "load" | "waiting":
                return self.load, f"the engine did not load within {self.load:g} s"
            case "cell":
                return self.cell, f"no outcome within {self.cell:g} s"
            case "close":
                return self.close, f"the engine did not shut down within {self.close:g} s"
            case "between":
                return self.cell, f"nothing was begun within {self.cell:g} s"
            case "idle":
                return math.inf, ""
        raise ValueError(phase)
