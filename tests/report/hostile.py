"""A run whose every free text tries to break the page, or to run in it."""

from __future__ import annotations

import math
from dataclasses import replace

from conformance.spec.records import (
    Attribution,
    Backend,
    Column,
    Judged,
    ModelInfo,
    Relation,
    Results,
    Side,
    Status,
    Verdict,
)
from tests.report import synthetic

#: Ran, it would leave a mark that the browser tests look for.
ATTACK = (
    "</script><script>window.broken = 1</script>"
    "<img src=x onerror='window.broken = 1'><!-- \"'`&amp; {{ 7*7 }} {% raw %}"
)
RIGHT_TO_LEFT = "\u202eטעות \u202e خطأ\u202c"
EMOJI = "👩🏽‍🚀🧪🔥"
LONE_SURROGATE = "cut \ud83d in half"
ESCAPES = "\x1b[2J\x1b]0;title\x07\x00 gone"
MODEL = f"model-{ATTACK}"
BACKEND = f"vllm-{ATTACK}#&=[]%25"


def hostile() -> Results:
    """Three cells: one wrong, one in error, one passing; on a model named like an attack."""
    base = synthetic.results()
    planted = next(cell for cell in base.cells if cell.verdict is Verdict.WRONG)
    error = next(cell for cell in base.cells if cell.verdict is Verdict.ERROR)
    passing = next(cell for cell in base.cells if cell.verdict is Verdict.MATCH)
    text = f"{ATTACK} {RIGHT_TO_LEFT} {EMOJI} {LONE_SURROGATE} {ESCAPES}"
    cells = tuple(
        replace(
            cell,
            id=f"{cell.scenario}[{MODEL}-{BACKEND}-{name}]",
            model=MODEL,
            backend=BACKEND,
            case=name,
            architecture=ATTACK,
            reason=text,
            diagnosis=text if cell.verdict is Verdict.WRONG else "",
            attribution=Attribution(Side.NNSIGHT, ATTACK),
            expected=ATTACK,
            command=f"conformance run -k '{ATTACK}'",
            detail=text + "x" * 1_000_000,
            relations=(Relation(ATTACK, holds=False, detail=ATTACK),),
            observations=(
                *cell.observations,
                Judged(ATTACK, Verdict.NONFINITE, ATTACK, q_max=math.nan, ratios=(math.inf, 1.0)),
                Judged("p0/s0/tokens", Verdict.WRONG, ATTACK, extra={ATTACK: math.nan}),
            ),
            worst_site=ATTACK,
            worst_ratio=math.nan,
        )
        for cell, name in ((planted, f"a{ATTACK}"), (error, EMOJI), (passing, RIGHT_TO_LEFT))
    )
    group = replace(
        base.groups[0],
        model=MODEL,
        backend=BACKEND,
        status=Status.ERROR,
        layout=ATTACK,
        layout_tried={ATTACK: math.inf},
        identity={ATTACK: ATTACK, "served": ATTACK, "stages": ATTACK, "device": ATTACK},
        versions={ATTACK: ATTACK},
        log_tail=(text + "\n") * 8_000,
    )
    scenarios = tuple(
        replace(s, meaning=text, path=ATTACK, trace_source=ATTACK, reference_source=ATTACK)
        for s in base.scenarios
    )
    return replace(
        synthetic.wrapped(
            cells,
            models=(ModelInfo(MODEL, ATTACK, ATTACK, ATTACK),),
            columns=(Column(Backend(BACKEND, "x")),),
            scenarios=scenarios,
            groups=(group,),
        ),
        run=replace(base.run, id=ATTACK, command=ATTACK, started=ATTACK),
        environment=replace(
            base.environment, platform=ATTACK, devices=(ATTACK,), versions={ATTACK: ATTACK}
        ),
    )
