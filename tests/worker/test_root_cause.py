"""The cause is found in the log of an engine of several processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.worker.root_cause import cause, points_elsewhere, says_that_it_ends

WRAPPER = (
    "Exception: WorkerProc initialization failed due to an exception in a background process. "
    "See stack trace for root cause."
)

#: As vLLM 0.32 writes it with two stages.
PREFIX = "(Worker_PP1 pid=28674) ERROR 11-21 04:47:56 [multiproc_executor.py:953] "
LOG = f"""\
INFO 11-21 04:47:50 [api.py:1] Error handling is on
{PREFIX}Traceback (most recent call last):
{PREFIX}    with safe_open(file) as f:
{PREFIX}safetensors._rust.SafetensorError: incomplete metadata: cut
Traceback (most recent call last):
  File "multiproc_executor.py", line 815, in wait_for_ready
    raise e from None
{WRAPPER}
"""
#: Its words quote what the log says, and what the log said long before is not meant.
QUOTED = "KeyError: 'long ago'\n[core.py:1] RuntimeError: the sizes differ\n"
QUOTING = "RuntimeError: Worker failed with error 'the sizes differ', see the root cause"


@pytest.mark.parametrize(
    ("log", "words", "found"),
    [
        (LOG, WRAPPER, "SafetensorError: incomplete metadata: cut"),
        ("OSError: no space\nRuntimeError: See root cause above.\n", WRAPPER, "OSError: no space"),
        (QUOTED, QUOTING, ""),
        (f"{QUOTED}ValueError: x\n", "ValueError: x", "RuntimeError: the sizes differ"),
        (f"all is well\nExit code 3\n{WRAPPER}\n", WRAPPER, ""),
        ("", WRAPPER, ""),
        ("Traceback:\nKeyError: 'rope'\nmore\n", WRAPPER, "KeyError: 'rope'"),
    ],
)
def test_the_cause_is_the_last_exception_that_the_words_do_not_quote(
    log: str, words: str, found: str
) -> None:
    assert cause(log, words)[0] == found


def test_its_context_is_shown() -> None:
    _, context = cause(LOG, WRAPPER)
    assert "with safe_open(file) as f:" in context
    assert WRAPPER not in context


@given(st.text())
def test_any_log_can_be_searched(log: str) -> None:
    words, context = cause(log, WRAPPER)
    assert bool(words) == bool(context)


def test_only_a_message_that_says_so_points_elsewhere_or_says_that_it_ends() -> None:
    assert points_elsewhere(WRAPPER)
    assert points_elsewhere("Engine core initialization failed. See root cause above.")
    assert not points_elsewhere("ValueError: the cause is a bad root")
    assert says_that_it_ends("Exception: Server shutting down")
    assert not says_that_it_ends("RuntimeError: the engine core is gone")
