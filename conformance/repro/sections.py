"""Which lines of the harness one script holds: what its scenario uses, and nothing twice."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from conformance.errors import ConformanceError
from conformance.repro.quoting import Imported, Quoted, import_lines, quote, unused
from conformance.repro.scenario_source import Asked

#: What the script defines itself instead: the harness's own would bring much along.
GIVEN = frozenset({"record", "worker_class", "find", "observed", "Branches", "stop_at"})
#: The same where a scenario reads nothing of a model but streams, logits and tokens.
_NO_PARTS = frozenset({"Parts", "find_parts", "recorded"})
#: Classes of which a script holds only the methods that it calls, or that its scenario does.
_LEAN = frozenset(
    {
        *("HFEngine", "VLLMEngine", "ReferenceEngine", "ReferenceModel", "Run", "Parts", "Probe"),
        *("Case", "Site", "Honest"),
    }
)
_ASKED = frozenset({"HFModel", "VLLMModel", "TracedModel", "TracedLayer", "PaddedLayer", "Part"})
_BOTH = (
    "conformance.records:Case",
    "conformance.records:Site",
    "conformance.engines.traced:flatten_runs",
    "conformance.generated_tokens:continuation",
    "conformance.generated_tokens:differing",
    "conformance.builtin.probe:PROBE",
)
_TRUTH = (
    "conformance.engines.reference.engine:open_engine",
    "conformance.builtin.probe:_probe_reference",
)
_TRACE = {
    "hf": "conformance.engines.hf:open_engine",
    "vllm": "conformance.engines.vllm.engine:open_engine",
}
_VERDICT = "conformance.repro.verdict:"

#: The engines that a script can be written for.
ENGINES = frozenset(_TRACE)


#: What the script itself imports.
_ITSELF = {
    **{
        name: Imported(name)
        for name in ("re", "signal", "subprocess", "tempfile", "torch", "traceback")
    },
    "dataclass": Imported("dataclasses", "dataclass"),
    "replace": Imported("dataclasses", "replace"),
    "metadata": Imported("importlib", "metadata"),
    "SimpleNamespace": Imported("types", "SimpleNamespace"),
}


#: What the script defines and imports itself; a scenario may not.
_OWN = frozenset(
    {
        *("STEP", "CHECKPOINT", "CHECKPOINT_DIGEST", "DEVICE", "VERSIONS", "VERDICT", "REASON"),
        *("LIMITS", "MODEL", "BACKEND", "TWIN", "NEEDS", "SECONDS", "CASE", "SCENARIO", "record"),
        *(
            "job",
            "run_truth",
            "run_trace",
            "half",
            "traced_on",
            "claims",
            "same_way",
            "first_line",
            "main",
        ),
        *("sys", "os", "importlib", "Path", *_ITSELF, *GIVEN, *_NO_PARTS),
    }
)


@dataclass(frozen=True, slots=True)
class Sections:
    """The parts of a script. `types` are only named in annotations; `parts` says that
    `Parts` is among what is quoted.
    """

    common: Quoted
    trace: Quoted
    truth: Quoted
    judge: Quoted
    parts: bool

    def imports(self, asked: Asked) -> list[str]:
        """Import lines of everything but the two halves, which import for themselves."""
        names = {**self.judge.imports, **self.common.imports, **asked.imports, **_ITSELF}
        return list(import_lines(names))

    def halves(self, part: Quoted, asked: Asked) -> list[str]:
        """Import lines of one half: what the whole script has is not repeated."""
        known = {**self.judge.imports, **self.common.imports, **asked.imports, **_ITSELF}
        own = {name: one for name, one in part.imports.items() if known.get(name) != one}
        return list(import_lines(own))

    @property
    def types(self) -> list[str]:
        every = (self.common, self.trace, self.truth, self.judge)
        defined = {name for part in every for name in part.owners}
        own = GIVEN | (frozenset() if self.parts else _NO_PARTS)
        return sorted({name for part in every for name in part.types} - defined - own)


def sections(
    asked: Asked,
    engine: str,
    by_name: Iterable[str],
    *,
    rules: Iterable[str],
    exact: bool,
    used: str,
) -> Sections:
    """What to quote. `by_name` are classes that the engine looks up by their names, the worker's
    among them; `rules` those of `verdict` that the cell needs, `used` what else the script says.
    """
    for name in sorted(asked.names & _OWN):
        if asked.imports.get(name) != _ITSELF.get(name) or name not in _ITSELF:
            raise ConformanceError(
                f"the scenario {asked.trace!r} defines {name!r}, which the script needs itself",
                remedy="give it another name in the scenario's file",
            )
    trace = (_TRACE[engine], *by_name)
    judge = (f"{_VERDICT}verdict_on", *(f"{_VERDICT}{rule}" for rule in rules))
    judge += ("conformance.judge.measures.relations:compare_exact",) if exact else ()
    said = f"{asked.text}\n{used}"
    lean = _parted((trace, _TRUTH, judge), asked, said, GIVEN | _NO_PARTS)
    if re.search(r"\.parts\b(?!\.require)[.\[]|\bparts=\(", f"{lean.trace.text}\n{asked.text}"):
        return _parted((trace, _TRUTH, judge), asked, said, GIVEN)
    return lean


def _parted(
    roots: tuple[Collection[str], Collection[str], Collection[str]],
    asked: Asked,
    used: str,
    given: frozenset[str],
) -> Sections:
    every = [[*_BOTH, *part] for part in roots]
    without = unused(every, _LEAN, used, given=given)
    without |= unused(every, _ASKED, asked.text, given=given, among_themselves=True)
    if ".generate(" not in asked.text:
        without |= {f"{name}.generate" for name in _ASKED}

    def one(wanted: Iterable[str], known: Collection[str], taken: Collection[str] = ()) -> Quoted:
        return quote(wanted, given=known, without=without, avoid={*asked.names, *taken})

    owners = [one(part, given).owners for part in roots]
    shared = {
        f"{module}:{name}"
        for first, second in ((0, 1), (0, 2), (1, 2))
        for name, module in owners[first].items()
        if owners[second].get(name) == module
    }
    common = one([*_BOTH, *sorted(shared)], given)
    known = given | set(common.owners)
    trace, truth = (one(part, known) for part in roots[:2])
    # The judge's definitions are in both halves, after theirs: of one name they would win there.
    judge = one(roots[2], known, {*trace.owners, *truth.owners})
    return Sections(common, trace, truth, judge, parts="Parts" not in given)
