"""Work in processes of its own: what comes back, and how it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from conformance.errors import ConformanceError, ExitCode
from conformance.runner.processes import parallel
from tests.patience import PATIENCE


def double(number):
    return 2 * number, os.getpid()


def refuse(number):
    raise ConformanceError("no", path=Path("x.yaml"), line=number, remedy="yes", code=ExitCode(3))


def set_up(word):
    os.environ["SET_UP"] = word


def set_up_with(_):
    return os.environ["SET_UP"], signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def side_by_side(function, count, **more):
    return list(parallel.side_by_side(function, [(n,) for n in range(count)], processes=2, **more))


def test_results_come_in_order_from_other_processes_that_are_set_up():
    found = side_by_side(double, 5)
    assert [number for number, _ in found] == [0, 2, 4, 6, 8]
    assert os.getpid() not in {pid for _, pid in found}
    # Interrupts are their parent's.
    assert side_by_side(set_up_with, 2, begin=set_up, begin_with=("so",)) == [("so", True)] * 2


def test_an_error_arrives_whole():
    with pytest.raises(ConformanceError) as caught:
        side_by_side(refuse, 3)
    assert str(caught.value) == "x.yaml: no\n  → yes"
    assert caught.value.code is ExitCode.HARNESS


@pytest.mark.parametrize(("cells", "cores", "count"), [(100, 8, 0), (900, 8, 2), (9000, 4, 4)])
def test_a_small_run_needs_no_process(monkeypatch, cells, cores, count):
    monkeypatch.setattr(parallel, "cores", lambda: cores)
    assert parallel.worth(cells) == count


WAITING = """
import os, sys, time
from conformance.runner.processes import parallel
if __name__ == "__main__":
    pool = parallel.pool_of(1)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


def test_a_process_that_waits_for_work_ends_with_the_one_that_was_killed(tmp_path):
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        server = worker.parent()
        parent.kill()
    gone, alive = psutil.wait_procs([worker, server], timeout=PATIENCE)
    assert alive == [], "they wait for ever"
    assert len(gone) == 2
