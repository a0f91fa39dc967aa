"""Drawing, first ids: hundreds of draws of one distribution, each by itself.

So many that a temperature somewhat too low or too high shows by their likelihood, and an id outside
of what top-k keeps at once.
"""

import torch

from conformance import scenario

SEED = 11
#: Of all ids as many as tell 0.7 and 1.5 from 1, on the model that shows least of it, too
#: (docs/numerics.md); of a few, one outside of them is enough.
DRAWS, FEWER = 448, 64
#: As many as are computed at once.
TOGETHER = 8
#: What follows it is neither sure nor anything at all: another temperature changes it most.
PROMPT = "A small boat drifted slowly past the old stone bridge while we were"


def count(case):
    return FEWER if case.options["top_k"] else DRAWS


def joined(saved):
    """One tensor of what one block saved of several draws, or one block for each of them."""
    if isinstance(saved, torch.Tensor):
        return saved
    return torch.cat([joined(part) for part in saved])


def several(lm, case, seed):
    """The ids of a few draws, and the logits that each was drawn by."""
    how = {name: case.options[name] for name in ("temperature", "top_k")}
    with lm.trace(case.prompts[0], seed=seed, draws=TOGETHER, **how):
        logits, ids = [].save(), [].save()
        rows, drawn = lm.draws
        logits.append(rows)
        ids.append(drawn)
    return zip(joined(logits), joined(ids).split(1), strict=True)


@scenario(
    prompts=(PROMPT,) * DRAWS,
    options={"temperature": (0.7, 1.0), "top_k": (0, 20)},
    tier=lambda _: "scheduling",
    depends_on="engine",
)
def drawing_first(lm, case):
    observed = []
    for first in range(0, count(case), TOGETHER):
        for row, token in several(lm, case, SEED + first):
            observed.append({"sampled": [token], "logits": [row]})
    return observed


@drawing_first.reference
def _(model, case):
    run = model.run(case.prompts[0])
    return [{"sampled": run.tokens, "logits": run.logits} for _ in range(count(case))]
