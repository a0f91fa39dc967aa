"""Verdicts on cells, findings that say whether a verdict is new, and predictions of known.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Verdict(StrEnum):
    """The judgement on one cell. Only `exact` and `match` pass; `drift` is shown and counted, but
    fails no run by itself: the trace is correct, the engine is less precise.
    """

    EXACT = "exact"
    MATCH = "match"
    DRIFT = "drift"
    WRONG = "wrong"
    DROPPED = "dropped"
    PARTIAL = "partial"
    MISSCALED = "misscaled"
    CONTAMINATED = "contaminated"
    ALIASED = "aliased"
    STRUCTURE = "structure"
    DTYPE = "dtype"
    NONFINITE = "nonfinite"
    MISSING = "missing"
    VACUOUS = "vacuous"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"
    UNTESTABLE = "untestable"
    UNKNOWN = "unknown"

    @property
    def passes(self) -> bool:
        return self in PASSING

    @property
    def neutral(self) -> bool:
        """Return whether it is neither a pass nor a failure; it then has a reason."""
        return self in NEUTRAL

    @property
    def fails(self) -> bool:
        return not (self.passes or self.neutral or self is Verdict.DRIFT)


class Finding(StrEnum):
    """How a verdict compares with known.yaml."""

    PASSED = "passed"
    KNOWN = "known"
    NUMERICS = "numerics"
    UNEXPECTED = "unexpected"
    STALE = "stale"
    EXPIRED = "expired"
    FLAKY = "flaky"
    HARNESS = "harness"

    @property
    def fine(self) -> bool:
        return self in (Finding.PASSED, Finding.KNOWN, Finding.NUMERICS)


PASSING = frozenset({Verdict.EXACT, Verdict.MATCH})
NEUTRAL = frozenset({Verdict.UNSUPPORTED, Verdict.SKIPPED, Verdict.UNTESTABLE})

VLLM_BLOOM = "vllm-bloom"
VLLM_GPT_BIGCODE = "vllm-gpt_bigcode"
VLLM_GPT_OSS = "vllm-gpt_oss"

#: Definitions of a model that the reference also computes, by their name in `prediction:`.
PREDICTIONS: Mapping[str, str] = MappingProxyType(
    {
        VLLM_BLOOM: (
            "Bloom with the exact GELU, and the residuals added after attention and MLP, not "
            "inside of them"
        ),
        VLLM_GPT_BIGCODE: (
            "GPTBigCode whose learned positions are added once more where the second of two stages "
            "begins"
        ),
        VLLM_GPT_OSS: "gpt_oss with activations held to 7, whatever `swiglu_limit` is",
    }
)

#: Prefix of the member under which the reference stores a definition's values.
DEFINITION = "definition-"
