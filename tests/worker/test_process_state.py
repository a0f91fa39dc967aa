"""What a case changes in its process, without an effect on the next case."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.records import Case, Status
from conformance.worker import frames, main, process_state

CASE = Case("plain", "first", ("a",))


def test_every_case_begins_with_the_same_random_state_folder_and_defaults(tmp_path: Path) -> None:
    import numpy as np
    import torch

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
        "import mmap\nfrom conformance.worker import main\nmain.limit_memory()\nkept = []\n"
        # As malloc does; untouched, it takes no room.
        "while len(kept) < 4096: kept.append(mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "Cannot allocate memory" in ran.stderr


class Raises:
    """An engine whose block is this file's code."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def run(self, *_: object) -> object:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_a_block_that_asks_for_the_end_of_the_program_is_an_error(error: BaseException) -> None:
    roots = frames.roots(Path(__file__).parent)
    outcome, _ = main.observe(Raises(error), {"plain": object()}, CASE, roots)  # type: ignore[arg-type,dict-item]
    assert outcome.status is Status.ERROR
    assert type(error).__name__ in outcome.reason
    with pytest.raises(type(error)):
        main.observe(Raises(error), {"plain": object()}, CASE, frames.roots())  # type: ignore[arg-type,dict-item]


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_what_somebody_else_raises_ends_the_process_as_ever(error: BaseException) -> None:
    with pytest.raises(type(error)), process_state.raising_instead_of_exiting():
        raise error
