"""docs/faults.md: what every fault does, where it acts, and which cell must show it as what.

    python -m conformance.selftest.catalogue docs/faults.md     # as `make docs` does

The sentences stand here, beside each other; everything else comes from the records of
`conformance.selftest.faults`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from conformance.records import Side
from conformance.selftest.fault import ALL, Fault
from conformance.selftest.faults import FAULTS

#: What a reader, a write or a process does when the fault is injected, by the fault's id.
DAMAGE: Mapping[str, str] = {
    "repeat": "Nothing: the same cell is observed a second time.",
    "noise-only": (
        "The two summands of the stream are added in bf16 before the fused norm, not in "
        "float32 inside it: an honest rounding."
    ),
    "eager-attention": (
        "transformers computes attention by its eager implementation: an honest computation."
    ),
    "alias": (
        "Every stream read before is overwritten by the one read last, as a buffer that the "
        "engine uses again would be."
    ),
    "alias-next": "The stream read after one layer is overwritten by the next layer's.",
    "half-stream": "Of a layer that returns (branch, residual) only the first summand is read.",
    "layer-off": "A read gives the stream after the layer before.",
    "input-residual": "A read gives what the layer added, without what came into it.",
    "input-positions": (
        "A layer's input is the integer positions, the first positional argument of vLLM's layers."
    ),
    "input-half": "A layer's input is one of the two summands that the layer was given.",
    "positions-as-rows": "A read gives token positions in the shape of activations.",
    "stream-shape": "A read has one row too many, which broadcasts silently in what follows.",
    "flat-rows": (
        "A read gives the first token's row alone: `output[0]` where there is no batch axis."
    ),
    "prefix-cache": "The first rows are missing, as those of tokens that the prefix cache served.",
    "chunked": "Only the last rows are there, as those of the last chunk of a split prompt.",
    "norm-tuple": "The final norm gives a tuple (normalised, residual) in place of a tensor.",
    "rowparallel-tuple": "A branch gives a tuple (output, bias) in place of a tensor.",
    "merged-proj": "The halves of the width have changed places, as a merged projection's may.",
    "merged-proj-branch": (
        "The halves of the width of what a branch takes or gives have changed places."
    ),
    "head-neighbour": "Each attention head is read as the one before it.",
    "head-rank-swapped": "The heads of two ranks have changed places.",
    "head-rank-half": "The heads of one rank stand for those of the other one too.",
    "key-for-value": "What is read as a layer's value is its key.",
    "key-other-group": "Of grouped heads each key is that of another group.",
    "query-by-stride": (
        "The query's columns are taken by head, as GPT-NeoX holds them, where they are in blocks."
    ),
    "query-before-norm": "A query has not the length that its norm gives it.",
    "logprobs-shifted": "Each token of a prompt is given the log-probability of the next one.",
    "steps-random": (
        "In bf16 alone the streams and logits of every later step are random numbers, on a model "
        "with experts."
    ),
    "logprobs-tempered": "The likeliest log-probabilities are divided by a temperature.",
    "embedding-off": "The rows of what a part takes or gives are shifted by one token.",
    "token-off": "The rows of the stream are shifted by one token.",
    "permuted": "The rows of the stream are in reverse order.",
    "scaled": "The stream is multiplied by a constant.",
    "zeros": "A read gives zeros.",
    "blurred": "Every row of a read carries a random error of a given share of its length.",
    "blurred-above-floor": (
        "Every row of a read carries a random error of a multiple of the honest one, which "
        "only many tokens together show."
    ),
    "one-token": "One token's row of a read carries a random error.",
    "massive-off": "The largest number of the stream, a massive activation, is off.",
    "pp-dtype-read": "A read gives float32 where the model computes in bf16.",
    "not-finite": "One number of a read is NaN.",
    "wrong-donor": "A value consumed from an early layer is another prompt's.",
    "hidden-extract": "The hidden states that the engine hands out by itself lack the last row.",
    "extract-off": "The engine hands out the state after the layer before.",
    "read-beside": "A block reads the layer before, while the engine hands out the right one.",
    "read-bit": "The last bit of one number differs between a read and what the engine hands out.",
    "logits-place": "The logits carry a soft cap that the other side's have not.",
    "logits-scale": "The logits are multiplied by a constant.",
    "logits-shift": "A constant is added to all logits.",
    "samples-dtype": "Sampled ids are int32, not int64.",
    "token-other": "The id that is reported is not the one that was chosen.",
    "runner-up": (
        "In one step the engine generates the second best id and goes on from it, so that logits "
        "and id disagree in that step alone."
    ),
    "runner-up-bf16": (
        "The same in bf16, where the second best may be near enough that noise excuses it."
    ),
    "defaults": (
        "A generation is asked for without parameters: vLLM then draws 16 tokens at temperature 1."
    ),
    "save-unbound": "A value was saved without being bound to a name, and is not there.",
    "error-lost": "An error ended the block unseen: everything saved after it is not there.",
    "async-first": "Of several prompts only the first one's observations come back.",
    "layer-next": "Values are filed under the layer before theirs.",
    "alias-list": "A list of what the steps read holds the last step's value at each place.",
    "stale-step": "One step's streams are those of the step before.",
    "preempt": "A step is reported twice, and all later ones come a step late.",
    "name-clash": "Two prompts that saved one name got each other's logits.",
    "name-clash-one": "Two prompts saved one name, and the second one's value stands for both.",
    "span": "The batch is cut in the wrong place: a prompt has rows of its neighbour.",
    "token-axis": "Nobody cut the batch: every prompt has the rows of all.",
    "one-bit": (
        "The last bit of one number that arrived at another layer is not that of the source."
    ),
    "bos": "The prompt has one id too many in front, or one too few.",
    "bit-beside": "Beside an edit of the last token one bit of the first token's row changes.",
    "one-bit-again": "The last bit of one number that must repeat another does not.",
    "prefix-cache-again": (
        "A repeated prompt has fewer rows: its first tokens were not computed again."
    ),
    "lasting": "What an earlier run's block wrote is still there.",
    "error-swallowed": "The error that a block raised does not come out of the trace.",
    "error-lasting": "The trace after one that failed has lost a layer's values.",
    "alias-live": "A branch's output, saved without a copy, is overwritten by a later one.",
    "skip-dual": "A layer that returns two summands is skipped with one tensor.",
    "skip-lost": "A layer that is to be skipped runs all the same.",
    "lens-unnormed": "The logit lens applies the head to the stream without the final norm.",
    "stop-lost": "`tracer.stop` does not stop.",
    "result-early": "`tracer.result` has every id one place late.",
    "edit-stays": "A registered block acts on after it was cleared.",
    "cache-unedited": "`tracer.cache` keeps what the layers gave before the block edited it.",
    "cache-short": "`tracer.cache` keeps the first step alone.",
    "router-tie": "The two best experts of one token change places.",
    "samples-swapped": "Two samples of a prompt have each other's ids.",
    "seed-lost": "Every generation is drawn with a seed of its own, whatever was asked for.",
    "force-lost": "A forced id is not taken: the generation goes on with its own.",
    "force-other": "The generation goes on with another id than the forced one.",
    "chunked-prompt": "Of a prompt that is split into chunks only the last rows are read.",
    "preempt-late": (
        "A request that was set aside reports a step twice, and all later ones a step late."
    ),
    "prefix-cache-kept": "With the prefix cache on, a repeated prompt has fewer rows.",
    "ids-other": "The model was given other ids than those of the prompt.",
    "write-dropped": "A write has no effect.",
    "write-dropped-bf16": "In bf16 alone a write has no effect, on a model with experts.",
    "inplace-lost": "An edit lands in a copy, and the layer's own output goes on.",
    "write-half": "Of two summands only the first is replaced, and the residual stays.",
    "write-twice": "An edit acts twice.",
    "write-sign": "An edit acts with the opposite sign.",
    "write-partly": "An edit acts with a part of its size.",
    "write-elsewhere": "An edit of the right size acts in another direction.",
    "write-tokens-lost": "An edit of all tokens reaches the last one alone.",
    "write-leaks": "An edit of the last token reaches all of them.",
    "write-leaks-little": "A small edit of the last token reaches all of them.",
    "write-one-prompt": "Of two prompts' edits one has no effect.",
    "write-not-zero": "A stream that is set to zero is nearly zero.",
    "write-tuple": "A layer's output is replaced by a tuple that lacks the second summand.",
    "given-dropped": "What is assigned to a router's input has no effect.",
    "given-shared": "What is assigned to a router's input reaches the experts as well.",
    "write-late-half": "A write to a layer of the second half comes too late.",
    "mlp-lost": "One layer's MLP adds nothing.",
    "mlp-twice": "One layer's MLP adds twice what it should.",
    "attention-lost": "One layer's attention adds nothing.",
    "hooks-skipped": (
        "The engine goes around nnsight's hooks, as a replayed graph does; what reads nothing but "
        "logits is right all the same."
    ),
    "row-lost": "One token's row of an MLP is zero, as after a race between ranks.",
    "rope": "Every position after the first is too far on.",
    "rope-long": "Every position of a long prompt after the first is one too far on.",
    "softcap-window": "The sliding window of attention is ignored.",
    "longrope-factors": "Rotary positions are not stretched by the factors of the config.",
    "latent-norm": "The latent that attention keeps of keys and values is not normed.",
    "latent-rotary": "The keys of latent attention carry no position.",
    "mlp-scaled": "What one layer's MLP gives is multiplied by a constant.",
    "mlp-rows": "What one layer's MLP gives is shifted by one token, across requests too.",
    "mlp-halves": "The halves of the width of what one layer's MLP gives have changed places.",
    "mlp-stale": "One layer's MLP gives what that of the layer before gave: a stale buffer.",
    "attention-scaled": "What one layer's attention gives is multiplied by a constant.",
    "attention-rows": "What one layer's attention gives is shifted by one token.",
    "attention-order": "What one layer's attention gives is in reverse order of the tokens.",
    "slots-off": (
        "The scheduler's map of tokens to slots of the cache is one off, so that later steps "
        "attend to keys and values in each other's place."
    ),
    "coarse-mlp": "One layer's MLP carries a random error.",
    "drift": "The matrices of all layers are rounded to int8.",
    "layer-weights": "The second layer has the third one's weights.",
    "final-norm": "The final norm's weights are lost.",
    "pp-save-lost": "What the first stage's layers saved is not reported.",
    "pp-container": "Of a list over the steps a stage's shorter copy is reported.",
    "pp-dtype": "A value arrives at another stage as float32.",
    "pp-rows": "Of a value one row arrives at another stage.",
    "pp-noise": "A value that is sent to another stage carries a random error.",
    "pp-rolled": "A value arrives at another stage with its rows shifted by one.",
    "pp-stale": "What is sent of a layer is the value of the layer before.",
    "pp-zeros": "A value arrives at another stage as zeros.",
    "pp-never-sent": "The owner of a layer does not send its value.",
    "pp-visits-lost": "The last stage does not replay what the first one served.",
    "pp-order": "The last stage waits for a value that does not come.",
    "pp-one-bit": "The last bit of one number differs from that of a single stage.",
    "pp-rank-divergence": "What a block reads depends on the stage that runs it.",
    "pp-rank-edit": "What a block writes depends on the stage that runs it.",
    "pp-late-write": "A write reaches the owner of a layer after the layer ran.",
    "pp-names": "A stage finds no owner for a layer's name.",
    "pp-iter": "A value of another stage is iterated over without end.",
    "crash": "The worker aborts.",
    "hang": "The worker loops for ever.",
    "exit": "The worker leaves with exit status 0 before it is done.",
    "oom": "The worker is killed, as for want of memory.",
    "runner-v2": (
        "No hook fires: another model runner is in place of the one that nnsight instruments."
    ),
    "backend-switch": "The list of layers has another path than the scenario's block takes.",
    "bad-start": "The weights of a layer have another shape: the engine does not start.",
    "temperature-lost": "Ids are drawn at temperature 1, whatever was asked for.",
    "temperature-low": "Ids are drawn at 0.7 of the temperature that was asked for.",
    "temperature-high": "Ids are drawn at 1.5 times the temperature that was asked for.",
    "top-k-lost": "Ids are drawn from all, not from as many of the likeliest as asked for.",
    "top-p-lost": "Ids are drawn from all, not from the likeliest that hold the share asked for.",
    "edit-undone": "The layer after the one that was written is given what was there before.",
    "edit-undone-last": "The final norm is given what was there before the last layer was written.",
    "edit-fades": "Every layer shows the edit, and the head is given what it had without.",
    "edit-unseen": (
        "The last layer's MLP adds nothing, with an edit and without: of few layers all that "
        "comes after the written one is wrong, and nothing shows if the edit arrived."
    ),
    "edit-cached-only": (
        "Of a prompt the edit is in the keys and values of the next layer, and nowhere else."
    ),
    "edit-present-only": (
        "Later steps attend to keys and values as if nothing had been written before."
    ),
    "rows-mixed": "In a batch a row of the first request and one of the last change places.",
    "edit-outlives": (
        "Once a block has written a layer, a branch of it gives zeros in the forwards that follow."
    ),
    "client-outlives": (
        "Once one client's block has written a layer, a branch of it gives zeros in what follows, "
        "for all clients."
    ),
    "client-rows": (
        "nnsight takes a request's rows from one place too far on in the batch, or too far back: "
        "one of them is its neighbour's."
    ),
    "client-saves": (
        "Every client is sent what the one that was answered before it saved by the same names."
    ),
    "abort-outlived": (
        "What an aborted request's block did to a layer's branch is done to its neighbours, and to "
        "the trace that follows."
    ),
    "joined-rows": (
        "When a request joins a running batch, a row of one under way and one of the prompt that "
        "came change places."
    ),
    "clients-exchanged": "Two of several requests get each other's saves.",
    "neighbour-rows": "A request's last rows are the first ones of its neighbour in the batch.",
    "neighbour-edited": (
        "A share of what an edit adds to its own request is in the rows of a neighbour that edits "
        "nothing."
    ),
    "stop-missed": "A request goes on after its stop id.",
    "neighbour-lost": "What a block saved that stood beside one that raised is gone.",
    "raw-half": (
        "A module's output holds one summand of the stream alone, in a trace that reads the "
        "modules themselves."
    ),
    "raw-rows": "The rows of a module's output are shifted by one token.",
    "raw-rows-sum": "The same where the stream is the sum of the two parts of an output.",
    "raw-undone-sum": "As `raw-undone`, where the stream is the sum of the two parts of an output.",
    "raw-input-rows": (
        "A layer's `input` is handed out once with its rows shifted by one token, and right after."
    ),
    "raw-undone": (
        "A module's output is set to zero in place, and the next layer is given what was there."
    ),
    "raw-overwritten": "A layer's output, kept without a copy, holds the next layer's at the end.",
    "raw-overwritten-sum": "The same where the stream is the sum of the two parts of an output.",
}

#: Where a fault was met outside of this project, by its id.
MET: Mapping[str, str] = {
    "alias": "nnsight on vLLM: the fused norm writes over what was saved",
    "alias-live": "nnsight on vLLM: the fused norm writes over what was saved",
    "half-stream": "nnsight #630, vLLM-Hook #11",
    "runner-v2": "vLLM-Hook #33: after an upgrade no hook fired",
    "row-lost": "nnsight pull request 685: partial sums under tensor parallelism",
    "rope-long": "vllm #18267, #28839: pipeline stages wrong at long context only",
    "hidden-extract": "vLLM's extract_hidden_states under chunked prefill",
}

_INTRODUCTION = """\
<!-- Written by `make docs` from conformance/selftest; change it there. -->
# The faults

What `conformance selftest` injects, one row a fault: what it does, at which hook point (the points
are explained in docs/selftest.md) and on which columns, and the cells that must show it, with one
of the verdicts in the last column. A fault is a record in a module of
`conformance/selftest/faults/`, and its sentence stands in `conformance/selftest/catalogue.py`.
Without a remark it is injected on `hf`, `vllm-pp1` and `vllm-pp2`.
"""

_HEADINGS: Mapping[str, str] = {
    "": "Must not be flagged",
    Side.NNSIGHT: "nnsight's: reading, writing, saving, tracing",
    Side.ENGINE: "The engine's: forward, weights, processes",
    Side.PIPELINE: "The pipeline's: what passes between stages",
    Side.UNDECIDED: "Nobody's for certain",
}
_HEAD = "| fault | what it does | at | must be shown by | as |\n| --- | --- | --- | --- | --- |"


def catalogue(faults: Iterable[Fault] = tuple(FAULTS.values())) -> str:
    """The page, in Markdown: a table for each side that a fault belongs to."""
    by_heading: dict[str, list[Fault]] = {key: [] for key in _HEADINGS}
    for fault in faults:
        by_heading["" if fault.silent else fault.side].append(fault)
    sections = [
        "\n".join([f"## {_HEADINGS[key]}", "", _HEAD, *map(_row, members)])
        for key, members in by_heading.items()
        if members
    ]
    return "\n".join([_INTRODUCTION, "\n\n".join(sections), ""])


def _row(fault: Fault) -> str:
    met = f" Met in {MET[fault.id]}." if fault.id in MET else ""
    cells = (
        f"`{fault.id}`",
        DAMAGE[fault.id] + met,
        ", ".join([f"{fault.point}", *_where(fault)]),
        ", ".join(f"`{case}`" for case in fault.cases),
        ", ".join(f"`{verdict}`" for verdict in sorted(fault.verdicts)),
    )
    return f"| {' | '.join(cells)} |"


def _where(fault: Fault) -> list[str]:
    """What narrows a fault's place: layers, columns, models."""
    places = "/".join(place for place in fault.places if place)
    columns = "" if fault.backends == ALL else f"on {' and '.join(fault.backends)}"
    models = (*fault.architectures, *(f"models with {part}" for part in fault.parts))
    return [words for words in (places, columns, " and ".join(models)) if words]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(catalogue(), encoding="utf-8")
