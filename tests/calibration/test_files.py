"""calibration.json: read as it was written, refused when it was edited or is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import calibration
from conformance.calibration.files import sealed
from conformance.errors import ConformanceError
from conformance.records import Calibration, Thresholds
from tests.calibration.test_quantiles import calibrated, scores

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "calibration.json"
    calibration.write(file, calibrated([*scores(400, 1.4, 2.5), *scores(1, model="gpt2")]))
    return file


def test_what_was_written_is_read_and_sets_the_thresholds(path: Path) -> None:
    found = calibration.read(path)
    assert found == calibrated([*scores(400, 1.4, 2.5), *scores(1, model="gpt2")])
    thresholds = calibration.thresholds(found)
    assert (thresholds.k_med, thresholds.k_max) == (1.401, 2.5)
    assert found is not None
    assert found.digest in thresholds.source
    assert "401 clean cases" in thresholds.source


def test_without_a_file_the_starting_values_hold(tmp_path: Path) -> None:
    assert calibration.read(tmp_path / "none.json") is None
    assert calibration.thresholds(None) == Thresholds()


def leaves(tree: object, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(tree, dict):
        return [leaf for key, part in tree.items() for leaf in leaves(part, (*place, key))]
    if isinstance(tree, list):
        return [leaf for key, part in enumerate(tree) for leaf in leaves(part, (*place, key))]
    return [place]


def test_whatever_is_edited_by_hand_is_noticed(path: Path) -> None:
    written = path.read_text()
    edits = leaves(json.loads(written))
    assert len(edits) > 30
    for place in edits:
        tree = json.loads(written)
        part = tree
        for step in place[:-1]:
            part = part[step]
        value = part[place[-1]]
        part[place[-1]] = value + "0" if isinstance(value, str) else value + 1
        path.write_text(json.dumps(tree))
        with pytest.raises(ConformanceError, match="was edited") as caught:
            calibration.read(path)
        assert "conformance calibrate" in caught.value.remedy


@settings(max_examples=50)
@given(st.data())
def test_a_file_that_is_cut_off_or_no_record_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "calibration.json"
    calibration.write(path, calibrated(scores(300)))
    text = path.read_text().rstrip()
    path.write_text(text[: data.draw(st.integers(0, len(text) - 1))])
    with pytest.raises(ConformanceError, match="holds no valid Calibration") as caught:
        calibration.read(path)
    assert "conformance calibrate" in caught.value.remedy


def test_a_whole_file_that_says_more_than_its_caps_is_refused(path: Path) -> None:
    found = calibration.read(path)
    assert found is not None
    loose = {name: getattr(found, name) for name in Calibration.__slots__}  # type: ignore[attr-defined]
    calibration.write(path, sealed(Calibration(**{**loose, "k_max": 25.0})))
    with pytest.raises(ConformanceError, match="more than its caps"):
        calibration.read(path)


def test_the_committed_file_is_whole_and_counts_enough_cases() -> None:
    found = calibration.read(ROOT / "calibration.json")
    assert found is not None
    assert found.cases >= 300
    assert found.k_med <= calibration.CAP_MED
    assert found.k_max <= calibration.CAP_MAX
