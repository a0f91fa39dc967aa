"""Log-probabilities without any block: those of a prompt's tokens, of those
that it generates, and of the likeliest in each step.

Of a token that is drawn at a temperature they are by default those of the logits as they were;
`processed` ones are after the temperature. The token that is chosen greedily is the likeliest one.
"""

import torch

from conformance import LM, PAIR, Case, Reference, scenario

TOP = 5
TEMPERATURE = 2.0


@scenario(
    prompts=PAIR[1:],
    options={"of": ("greedy", "drawn", "processed")},
    steps=8,
    equal=[("chosen", "largest")],
    settings=lambda case: {"logprobs": "processed"} if case.options["of"] == "processed" else {},
    tier=lambda case: "scheduling" if case.options["of"] == "processed" else "",
    depends_on="engine",
)
def logprobs(lm: LM, case: Case):
    how = {} if case.options["of"] == "greedy" else {"temperature": TEMPERATURE, "seed": 3}
    processed = case.options["of"] == "processed"
    said = lm.log_probabilities(
        case.prompts[0], steps=case.steps, top=TOP, processed=processed, **how
    )
    largest = [likeliest[:1] for likeliest in said.top]
    return [
        {
            "prompt": said.prompt,
            "chosen": said.chosen,
            "largest": largest if case.options["of"] == "greedy" else said.chosen,
            "top": said.top,
            "sampled": said.ids,
        }
    ]


@logprobs.reference
def _(model: Reference, case: Case):
    run = model.run(case.prompts[0], steps=case.steps)
    flatter = TEMPERATURE if case.options["of"] == "processed" else 1.0
    steps = [torch.log_softmax(logits.float() / flatter, dim=-1) for logits in run.logits]
    following = run.ids[1:, None].to(torch.int64)
    rows = torch.log_softmax(model.every_logits(case.prompts[0])[:-1].float(), dim=-1)
    chosen = [row[token] for row, token in zip(steps, run.tokens, strict=True)]
    return [
        {
            "prompt": rows.gather(-1, following),
            "chosen": chosen,
            "largest": chosen,
            "top": [row.topk(TOP).values for row in steps],
            "sampled": run.tokens,
        }
    ]
