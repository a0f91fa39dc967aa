"""What a case changes in its process, without an effect on the next case."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from conformance.worker import process_state


def test_every_case_begins_with_the_same_random_state_folder_and_defaults(tmp_path: Path) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002

    folder, kept = Path.cwd(), process_state._keep()
    environment = dict(os.environ)
    first = drawn()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    os.chdir(tmp_path)
    os.environ["CONFORMANCE_OF_A_TEST"] = "1"
    kept()
    assert drawn() == first
    assert torch.get_default_dtype() is torch.float32
    assert (Path.cwd(), dict(os.environ)) == (folder, environment)


def test_allocating_without_end_is_an_error_where_it_is_done() -> None:
    script = (
        "import mmap\nfrom conformance.worker import process_state\n"
        "process_state.limit_memory()\nkept = []\n"
        # As malloc does; untouched, it takes no room.
        "while len(kept) < 4096: kept.append(mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "Cannot allocate memory" in ran.stderr


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_what_somebody_else_raises_ends_the_process_as_ever(error: BaseException) -> None:
    with pytest.raises(type(error)), process_state.raising_instead_of_exiting():
        raise error
