"""What `conformance clean` removes: never the newest, never what is under way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from conformance.cli import app
from conformance.runner.store import GroupFolder, ObservationCache, retention
from conformance.runner.store.retention import DAY, Item, RetentionLimits, select_superfluous
from conformance.spec.records import Group, Outcome, Status

ITEMS = st.lists(st.tuples(st.integers(0, 100), st.floats(0, 50)), max_size=12).map(
    lambda pairs: [
        Item(Path(str(i)), size, -age * DAY)
        for i, (size, age) in enumerate(sorted(pairs, key=lambda pair: pair[1]))
    ]
)


@given(ITEMS, st.integers(0, 300), st.floats(0, 50), st.integers(0, 5))
def test_the_newest_stay_and_the_rest_within_room_and_age(items, room, days, newest):
    gone = select_superfluous(items, RetentionLimits(days, room, newest), now=0.0)
    stays = [item for item in items if item not in gone]
    assert set(items[:newest]) <= set(stays)
    others = [item for item in stays if item not in items[:newest]]
    assert all(-item.used <= days * DAY for item in others)
    assert not others or sum(item.size for item in stays) <= room
    for item in gone:  # nothing goes without a reason
        newer = sum(one.size for one in stays if items.index(one) < items.index(item))
        assert -item.used > days * DAY or newer + item.size > room


def made(reports: Path, name: str, days: float, *, unfinished: bool = False) -> Path:
    path = reports / name
    path.mkdir(parents=True)
    (path / "plan.json").write_text("{}")
    if unfinished:
        (path / "unfinished").touch()
    then = time.time() - days * DAY
    os.utime(path / "plan.json", (then, then))
    return path


def test_it_lists_first_and_removes_when_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    reports = tmp_path / "reports"
    old, older = made(reports, "old", 30), made(reports, "older", 40)
    new = made(reports, "new", 1)
    going = made(reports, "going", 90, unfinished=True)
    other = reports / "notes"
    other.mkdir()
    words = ["clean", "--newest", "2", "--reports", str(reports)]
    listed = CliRunner().invoke(app, words)
    assert listed.exit_code == 0 and "--yes" in listed.stdout
    assert str(older) in listed.stdout and str(old) not in listed.stdout.replace(str(older), "")
    assert older.exists()
    assert CliRunner().invoke(app, [*words, "--yes"]).exit_code == 0
    assert sorted(path.name for path in reports.iterdir()) == ["going", "new", "notes", "old"]
    assert new.exists() and going.exists()


def test_a_run_ends_with_a_cache_of_limited_size(tmp_path):
    """Those go that were used the longest ago, each whole."""
    places = [tmp_path / "ab" / name for name in ("oldest", "older", "new")]
    for days, place in zip((40, 2, 1), places, strict=True):
        place.mkdir(parents=True)
        (place / "values").write_bytes(b"x" * 8192)
        then = time.time() - days * DAY
        os.utime(place, (then, then))
    retention.sweep(retention.observations(tmp_path), retention.OBSERVATIONS)
    assert [place.exists() for place in places] == [False, True, True]
    retention.sweep(retention.observations(tmp_path), RetentionLimits(days=30, room=8192))
    assert [place.exists() for place in places] == [False, False, True]


def test_a_cached_observation_that_goes_meanwhile_counts_as_absent(tmp_path, monkeypatch):
    cache, group = ObservationCache(tmp_path / "cache"), GroupFolder(tmp_path / "run")
    group.write_group(Group("m", "b"))
    group.write_cell("s.c", Outcome(Status.OK), {"p0/s0/x": torch.zeros(1)})
    assert cache.keep("abcd", group, "s.c")
    [item] = retention.observations(cache.folder)
    checked = ObservationCache._checked

    def removed(self, entry, folders):
        stored = checked(self, entry, folders)
        retention.remove(item)
        return stored

    monkeypatch.setattr(ObservationCache, "_checked", removed)
    other = GroupFolder(tmp_path / "other")
    assert cache.fetch("abcd", other, "s.c") is None
    assert other.finished() == ()
    assert retention.observations(cache.folder) == []
