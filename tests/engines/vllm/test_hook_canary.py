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


def stepped(runner, steps):
    runner.hooks = Hooks((AT,))
    for _ in range(steps):
        assert runner.execute_model() == "output"
    return runner.hooks.taken()


def test_steps_whose_hooks_fired_are_counted():
    assert proven([stepped(Runner(passed=1), 3), stepped(Runner(passed=2), 3)]) == 3


def test_an_engine_that_goes_around_the_hooks_of_one_rank_is_no_match():
    answers = [stepped(Runner(passed=1), 3), stepped(Runner(passed=0), 3)]
    with pytest.raises(HooksSkippedError, match=r"in 3 of 3 steps .* rank 1"):
        proven(answers)


def test_steps_without_a_block_ask_for_no_hook():
    assert proven([stepped(Runner(passed=0, mediators=()), 3)]) == 0


def test_what_was_taken_is_not_counted_again():
    runner = Runner(passed=0)
    stepped(runner, 1)
    assert runner.hooks.taken() == {"steps": 0, "silent": 0}
