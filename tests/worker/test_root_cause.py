"""The cause is found in the log of an engine of several processes."""

from __future__ import annotations

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


def test_the_cause_of_another_process_is_found() -> None:
    words, context = cause(LOG, WRAPPER)
    assert words == "SafetensorError: incomplete metadata: cut"
    assert "with safe_open(file) as f:" in context
    assert WRAPPER not in context


def test_another_message_that_points_elsewhere_is_no_cause() -> None:
    log = "OSError: no space\nRuntimeError: Engine core failed. See root cause above.\n"
    assert cause(log, WRAPPER)[0] == "OSError: no space"


def test_what_the_words_quote_is_not_said_again_nor_what_came_before() -> None:
    log = "KeyError: 'long ago'\n[core.py:1] RuntimeError: the sizes differ\n"
    words = "RuntimeError: Worker failed with error 'the sizes differ', see the root cause"
    assert cause(log, words) == ("", "")
    assert cause(f"{log}ValueError: x\n", "ValueError: x")[0] == "RuntimeError: the sizes differ"


def test_without_another_exception_there_is_no_cause() -> None:
    assert cause(f"all is well\nExit code 3\n{WRAPPER}\n", WRAPPER) == ("", "")
    assert cause("", WRAPPER) == ("", "")


def test_a_plain_traceback_is_understood() -> None:
    assert cause("Traceback:\nKeyError: 'rope'\nmore\n", WRAPPER)[0] == "KeyError: 'rope'"


def test_only_a_message_that_says_so_points_elsewhere() -> None:
    assert points_elsewhere(WRAPPER)
    assert points_elsewhere("Engine core initialization failed. See root cause above.")
    assert not points_elsewhere("ValueError: the cause is a bad root")


@given(st.text())
def test_any_log_can_be_searched(log: str) -> None:
    words, context = cause(log, WRAPPER)
    assert bool(words) == bool(context)


def test_an_engine_that_was_told_to_end_says_so() -> None:
    assert says_that_it_ends("Exception: Server shutting down")
    assert not says_that_it_ends("RuntimeError: the engine core is gone")
