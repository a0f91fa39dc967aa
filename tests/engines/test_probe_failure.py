"""What keeps traces from running does not keep an engine from saying what it does alone."""

import pytest
import torch

from conformance.engines import Refused, Unreadable
from conformance.engines.probing.probe_failure import Obstacle, probed, stop_at
from conformance.engines.traced import Probe, read_probe
from conformance.errors import ConformanceError
from conformance.spec.builtin.engine_alone import GENERATED
from conformance.spec.builtin.probe import PROBING
from conformance.spec.records import Status

STREAM = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
PROBE = Probe((STREAM,), (0.01,))


def died() -> list[torch.Tensor]:
    raise RuntimeError("no hook fired")


def test_a_probe_that_the_reference_did_not_measure_is_no_engines_fault(tmp_path):
    with pytest.raises(ConformanceError, match="did not measure"):
        read_probe(tmp_path)


def test_a_layout_that_fits_is_no_obstacle():
    settled, obstacle = probed(lambda: [STREAM], PROBE, "")
    assert settled.layout and obstacle is None
    stop_at(obstacle, PROBING)


@pytest.mark.parametrize(
    ("outputs", "refused", "kind", "status"),
    [
        (lambda: [-STREAM], lambda _: None, Unreadable, Status.STRUCTURE),
        (died, lambda _: None, RuntimeError, Status.ERROR),
        (died, lambda error: Refused(str(error)), Refused, Status.OK),
    ],
)
def test_every_trace_meets_it_and_plain_generation_does_not(outputs, refused, kind, status):
    settled, obstacle = probed(outputs, PROBE, "", refused)
    assert isinstance(obstacle, Obstacle) and obstacle.status is status
    assert not settled.layout and settled.reason
    stop_at(obstacle, GENERATED)
    depths = []
    for _ in range(2):
        with pytest.raises(kind) as raised:
            stop_at(obstacle, PROBING)
        depths.append(len(raised.traceback))
    assert depths[0] == depths[1], "each case has the traceback of the first time only"
