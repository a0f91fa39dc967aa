"""What a run's processes leave in the temporary folder is private, and gone with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.runner.processes import sessions, temporary
from tests.faulty_run import group
from tests.patience import wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder of this test; a short path, as a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def old(path: Path) -> None:
    os.utime(path, (time.time() - 3600,) * 2)


def test_a_folder_is_private_and_goes(place: Path) -> None:
    with temporary.folder() as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "socket").touch()
    assert list(place.iterdir()) == []


def test_a_folder_leaves_room_for_the_path_of_a_socket(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = place / ("d" * 40)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setattr(temporary, "_SHORT", place)
    with temporary.folder(room=20) as folder:
        assert folder.parent == deep
    with temporary.folder(room=40) as folder:
        assert folder.parent == place
    left = place / f"{temporary.PREFIX}dead"
    left.mkdir()
    with temporary.folder():
        assert not left.exists(), "swept wherever it was made"


def test_shared_memory_that_a_run_has_noted_goes_with_its_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, others = (Path("/dev/shm", f"cfm-test-{os.getpid()}-{name}") for name in "ab")
    theirs.touch()
    others.touch()
    try:
        with temporary.folder() as folder:
            monkeypatch.setenv("TMPDIR", str(folder))
            temporary.note_shared([str(theirs), str(place / "kept")])
            (place / "kept").touch()
        assert not theirs.exists()
        assert others.exists()
        assert (place / "kept").exists(), "shared memory alone"
    finally:
        theirs.unlink(missing_ok=True)
        others.unlink()


def test_shared_memory_is_a_runs_from_its_first_moment(place: Path) -> None:
    """Nothing has noted it when a kill comes while an engine loads."""
    code = (
        "import os, signal; from multiprocessing import shared_memory, resource_tracker\n"
        "from conformance.runner.processes import temporary; temporary.name_shared()\n"
        "kept = shared_memory.SharedMemory(create=True, size=64)\n"
        # Nor is there a tracker where all of a machine's processes are killed.
        "resource_tracker.unregister(kept._name, 'shared_memory')\n"
        "print(kept.name, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with temporary.folder() as folder:
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        left = Path("/dev/shm", ran.stdout.strip())
        assert left.name.startswith(folder.name)
        assert left.exists()
        # vLLM names others after the file at which its processes meet.
        meeting = folder / f"vllm_dist_{os.getpid()}"
        meeting.touch()
        ranks = Path("/dev/shm", f"{meeting.name}-pp:1-[0-1]-cpushm_0")
        others = Path("/dev/shm", f"{meeting.name}0-pp:1-[0-1]-cpushm_0")
        ranks.touch()
        others.touch()
    try:
        assert not left.exists()
        assert not ranks.exists()
        assert others.exists()
    finally:
        others.unlink()


def test_what_a_killed_run_left_is_swept_and_what_is_in_use_or_anothers_is_not(
    place: Path, tmp_path: Path
) -> None:
    left, mine = place / f"{temporary.PREFIX}left", place / "mine"
    link = place / f"{temporary.PREFIX}link"
    mine.mkdir()
    (tmp_path / "kept").mkdir()
    link.symlink_to(tmp_path / "kept")
    with temporary.folder() as used:
        left.mkdir()  # as from a run that was killed just now
        old(mine)
        old(used)
        with temporary.folder():
            assert not left.exists()
            assert mine.exists()
            assert used.exists()
    assert (tmp_path / "kept").exists()


def test_what_a_process_of_a_killed_run_holds_is_not_swept_before_it_ends(place: Path) -> None:
    code = (
        "from conformance.runner.processes import temporary\n"
        "temporary.hold(); print(flush=True); input()"
    )
    with temporary.folder() as folder:
        # The holder comes while its run is there, as a zygote does.
        holder = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert holder.stdout is not None
        holder.stdout.readline()
        kept = folder.rename(place / "kept")
    kept.rename(folder)
    with temporary.folder():
        assert folder.exists()
        holder.communicate()
    assert not folder.exists(), "swept at a run's end, too"


def test_a_folder_that_is_not_yet_held_has_its_time(place: Path) -> None:
    young, left = place / "cfm-new-young", place / "cfm-new-left"
    young.mkdir()
    left.mkdir()
    old(left)
    with temporary.folder():
        assert young.exists()
        assert not left.exists()


def test_only_a_runs_folder_is_removed(tmp_path: Path) -> None:
    temporary.remove(tmp_path)
    temporary.remove(Path())
    assert tmp_path.exists()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_socket_is_left_behind(place: Path, tmp_path: Path, end: signal.Signals) -> None:
    """Also where nobody but the zygote is left to see to it."""
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.faulty_run", str(tmp_path), "LeavesSockets"],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: len(group(tmp_path, "LeavesSockets").finished()) == 2)
    name, pid = (tmp_path / "listens").read_text().split()
    assert Path(name).is_socket()
    assert place in Path(name).parents
    places = sessions.listening([int(pid)])
    assert name in places
    [outside] = [one for one in places if sessions.reached_from_outside(one)]
    assert outside.startswith("0.0.0.0:")
    parent.send_signal(end)
    parent.wait(30)
    wait_until(lambda: list(place.iterdir()) == [])


@pytest.mark.parametrize(
    ("where", "outside"),
    [
        ("0.0.0.0:80", True),
        ("10.0.0.1:80", True),
        (":::80", True),
        ("fe80::1:80", True),
        ("127.0.0.1:80", False),
        ("::1:80", False),
        ("::ffff:127.0.0.1:80", False),
        ("/tmp/a:b", False),
        ("@relay:1", False),
    ],
)
def test_who_can_connect(where: str, outside: bool) -> None:
    assert sessions.reached_from_outside(where) is outside


def test_code_is_kept_by_the_instructions_that_it_was_compiled_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # one that is set stays
    kept = [
        temporary.environment(tmp_path, tmp_path, device)["TORCHINDUCTOR_CACHE_DIR"]
        for device in ("cpu: A", "cpu: A; ATEN_CPU_CAPABILITY=default", "cpu: A")
    ]
    assert kept[0] == kept[2] != kept[1]
