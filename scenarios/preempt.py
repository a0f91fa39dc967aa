"""Preemption: there is less room than three prompts need as they grow, so some are set aside and
computed anew.

Each step's last row is that of an undisturbed generation, and no step is seen twice.
"""

from conformance import scenario

PROMPTS = (
    "The river rose through the night and by the morning the lower meadows lay under water",
    "Two brothers kept a small shop near the harbour where the ferries used to come in from the",
    "Count the lamps along the street and write down which of them are broken before the rain",
)


@scenario(
    layers={"early": "early", "late": "late"},
    prompts=PROMPTS,
    steps=24,
    settings=lambda _: {"blocks": 8, "block_tokens": 32, "length": 96},
    tier=lambda _: "scheduling",
    depends_on="engine",
)
def preempt(lm, case):
    with lm.trace(steps=case.steps) as tracer:
        found = [None] * len(case.prompts)
        found = found.save()
        for index, prompt in enumerate(case.prompts):
            with tracer.invoke(prompt):
                rows, logits, chosen = [], [], []
                for _ in tracer.iter[: case.steps]:
                    rows.append({at: lm.layers[at].stream[-1:] for at in case.layers.values()})
                    logits.append(lm.logits)
                    chosen.append(lm.token)
                found[index] = {"rows": rows, "logits": logits, "tokens": chosen}
    return found


@preempt.reference
def _(model, case):
    observed = []
    for prompt in case.prompts:
        run = model.run(prompt, steps=case.steps)
        rows = [{at: step[at][-1:] for at in case.layers.values()} for step in run.stream]
        observed.append({"rows": rows, "logits": run.logits, "tokens": run.tokens})
    return observed
