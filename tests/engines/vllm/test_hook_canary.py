"""A step with a block in which no hook fired is an error, whatever the block read."""

from types import SimpleNamespace

import pytest

from conformance.engines.vllm.hook_canary import Hooks, HooksSkippedError, WatchedRunner, proven

AT = "model.layers.0.output"


class Forward:
    """An engine's step: passes this many of its layers by way of the hooks."""

    def __init__(self, passed, mediators=("block",)):
        interleaver = SimpleNamespace(counts={}, mediators=mediators)
        self.nnsight_model = SimpleNamespace(interleaver=interleaver)
        self.passed = passed

    def execute_model(self):
        counts = self.nnsight_model.interleaver.counts
        counts["logits"] = counts.get("logits", 0) + 1
        counts[AT] = counts.get(AT, 0) + self.passed
        return "output"


class Runner(WatchedRunner, Forward):
    pass


def stepped(passed, **more):
    """What a process answers after three steps."""
    runner = Runner(passed, **more)
    runner.hooks = Hooks((AT,))
    for _ in range(3):
        assert runner.execute_model() == "output"
    counts = runner.hooks.taken()
    assert runner.hooks.taken() == {"steps": 0, "silent": 0}
    return counts


def test_steps_whose_hooks_fired_are_counted():
    assert proven([stepped(passed=1), stepped(passed=2)]) == 3
    assert proven([stepped(passed=0, mediators=())]) == 0, "without a block"


def test_an_engine_that_goes_around_the_hooks_of_one_rank_is_no_match():
    with pytest.raises(HooksSkippedError, match=r"in 3 of 3 steps .* rank 1"):
        proven([stepped(passed=1), stepped(passed=0)])
