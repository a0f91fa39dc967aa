"""The published JSON schema of results.json: the records' schema with every field described."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from conformance import records

#: Record → field → description. A field without a line here fails the tests.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "Results": {
        "schema": "Name and version of this format.",
        "run": "The run itself: when, how long, which command.",
        "environment": "The machine that judged, its versions, and the thresholds.",
        "models": "The models of the run and the checkpoints that were used.",
        "columns": "The columns of the matrix.",
        "scenarios": "What was asked, with its meaning and both of its sources.",
        "groups": "What each worker (one model on one backend) said about itself.",
        "cells": "One entry for every planned cell.",
        "gaps": "What known.yaml explains, or has to be fixed about, each cause once.",
        "selection": "Which cells were chosen of those that the full tier has.",
        "details": "The digest of the file beside this one, observations.parquet, with the "
        "judgements of the observations that pass; empty where they stand in `cells`.",
        "footer": "Written last: without it the file is incomplete and refused.",
    },
    "Selection": {
        "tier": "The tier, empty where models, cells or an expression were named.",
        "chosen": "How many cells run.",
        "product": "How many cells the full tier has.",
        "float32_only": "How many of the chosen cells run in float32 alone.",
        "left_out": "In words, what does not run; empty where nothing is left out.",
    },
    "RunInfo": {
        "id": "The run's name: its folder under reports/.",
        "started": "When it began, ISO 8601.",
        "finished": "When it ended, ISO 8601.",
        "seconds": "Wall-clock seconds.",
        "command": "The command line.",
        "jobs": "How many workers ran at a time.",
        "peak_mib": "Most memory of all processes together, MiB; 0 when not measured.",
        "resumed": "Cells taken over from an interrupted run.",
    },
    "Environment": {
        "python": "Python's version.",
        "platform": "Operating system and processor.",
        "device": "`cpu` or `cuda`.",
        "devices": "The devices' names.",
        "settings": "Environment variables that chose threads or kernels, as NAME=value.",
        "versions": "Package → version, of the parent process.",
        "thresholds": "What the judge gated on.",
    },
    "ModelInfo": {
        "id": "The model's name in models.yaml.",
        "architecture": "The transformers `model_type`.",
        "source": "Where the weights came from.",
        "digest": "Of the checkpoint.",
        "truth": "Who confirms its float32 reference; null where nobody was asked.",
        "layers": "Number of decoder layers.",
        "width": "Width of the residual stream.",
        "harder_than": "The model that this is a harder form of; empty for none.",
        "config": "Values of its config by key, as text: what known.yaml may ask for.",
    },
    "Column": {
        "moved": "Engines that its environment changed unrequested: old and new version.",
        "backend": "Its entry in models.yaml.",
        "environment": "The environment that the run put it on; empty for none.",
        "python": "That environment's interpreter.",
        "requirements": "What that environment was made from.",
        "untestable": "Why there is no such environment; empty when there is.",
        "machine": "Where runs are merged: which machine's it is, when several have the same.",
    },
    "Backend": {
        "id": "The backend's name in models.yaml.",
        "engine": "The engine's name, or `module:function` for one of somebody else's.",
        "pipeline": "Pipeline stages asked for.",
        "tensor": "Tensor-parallel ranks asked for.",
        "transport": "Who carries values between stages: auto, relay or native.",
        "default": "Whether it runs without being named.",
        "environment": "The interpreter its workers run on; empty for the parent's.",
        "options": "Further options of the engine.",
    },
    "ScenarioInfo": {
        "id": "The scenario's name.",
        "meaning": "What it does, in words.",
        "cases": "Names of its cases.",
        "path": "Its file.",
        "trace_source": "The nnsight trace.",
        "reference_source": "The same in plain PyTorch: what it means.",
    },
    "Group": {
        "precision": "What the engine computed in.",
        "model": "The model's name.",
        "backend": "The backend's name.",
        "status": "How the worker's work ended; not a judgement.",
        "reason": "Why it is not `ok`.",
        "layout": "The reading of the residual stream that agrees with the reference.",
        "layout_tried": "Reading → distance from the reference, multiples of noise.",
        "identity": "What the engine proved to be: stages, eager mode, device and so on.",
        "config": "Values of the model's config by key, as text, from the reference alone.",
        "versions": "Package → version, in the worker.",
        "load_seconds": "Seconds until the engine was ready.",
        "seconds": "Seconds of the whole worker.",
        "peak_mib": "Most memory of the worker, MiB.",
        "log_tail": "The end of its log.",
        "starts": "How many workers it took; more than 1 after a crash or timeout.",
        "reused": "Whether observations of an earlier run were taken.",
        "machine": "Which machine of a cluster ran it; empty where none did.",
        "lost": "Machines that had begun it before, and were lost or could not.",
    },
    "CellResult": {
        "precision": "Whose evidence this is.",
        "decided": "That precision's own verdict.",
        "beside": "The other precision's answer; null where it was not gathered.",
        "id": "`scenario[model-backend-case]`.",
        "model": "The model's name.",
        "architecture": "The transformers `model_type`.",
        "backend": "The backend's name.",
        "scenario": "The scenario's name.",
        "case": "The case's name.",
        "verdict": "The judgement. Only `exact` and `match` pass.",
        "reason": "Why, in one line.",
        "seconds": "Seconds the case took in the worker.",
        "command": "Runs this cell alone.",
        "observations": "Every judged observation.",
        "relations": "Rules that need no tolerance, and whether they held.",
        "worst_site": "The observation that is furthest off.",
        "worst_ratio": "How far: multiples of the noise floor.",
        "detail": "Traceback or the engine's own words.",
        "frames": "The calls of the traceback whose owner is known, the innermost last.",
        "left": "What the block has changed for good.",
        "harness": "The harness failed here: never scored as the product's.",
        "diagnosis": "What explains a failure, in words.",
        "attribution": "Who has to fix a failed cell; null for one that did not fail.",
        "finding": "What known.yaml makes of the verdict; null where it was not asked.",
        "gap": "Index in `gaps` of what explains it.",
        "expected": "Why this verdict is expected; empty when it is not.",
        "layers": "The scenario's own names → layer indices.",
        "prompt_ids": "Token ids of each prompt.",
        "predicted": "Definitions of the model by which it would pass in `precision`.",
    },
    "Frame": {
        "owner": "Whose code: scenario, harness, self-test, pipeline, nnsight or engine.",
        "file": "From its package on.",
        "line": "In that file.",
    },
    "Attribution": {
        "side": "engine, nnsight, pipeline, harness or undecided.",
        "evidence": "The facts that decided, in words.",
    },
    "Judged": {
        "site": "`run/pPROMPT/sSTEP/name.LAYER`.",
        "verdict": "This observation's verdict.",
        "message": "What is wrong with it.",
        "q_med": "Median over tokens of the error in multiples of the noise floor.",
        "q_max": "The same for the worst token.",
        "spread": "Near 1: every token is off alike; near 1/tokens: one is.",
        "ratios": "The error of each token (row) in multiples of the noise floor.",
        "error": "Relative L2 distance from the reference, median over tokens.",
        "floor": "The same of bf16 baseline runs: the noise floor.",
        "smallest": "Smallest relative error that would have been found.",
        "gain": "Did the write land; null where nothing was written.",
        "shape": "Shape of the tensor.",
        "dtype": "Its type.",
        "extra": "Further figures that do not gate.",
    },
    "Gain": {
        "g": "Candidate's change along the reference's: 1 landed, 0 dropped, 2 twice, −1 sign.",
        "h": "What of the candidate's change points elsewhere, relative.",
        "sigma": "Standard deviation of g among baseline runs.",
        "tokens": "g of each token; NaN where the reference does not change.",
    },
    "Relation": {
        "gates": "Whether the verdict depends on it.",
        "name": "The rule.",
        "holds": "Whether it held.",
        "detail": "Where it did not.",
    },
    "Thresholds": {
        "float32": "Limits of what a cell means.",
        "bf16": "Limits of its numerics.",
        "source": "Where these numbers come from.",
    },
    "Limits": {
        "k_med": "Most the median token may be off to be a match, in multiples of the noise floor.",
        "k_max": "Most the worst token may be off to be a match, in multiples of the noise floor.",
        "far_med": "Up to this median token a value drifts; beyond it is wrong.",
        "far_max": "Up to this worst token a value drifts; beyond it is wrong.",
        "gain_tolerance": "How far a gain may be from 0 or 1 in any case.",
        "gain_sigmas": "The same in standard deviations of the baseline runs' gain.",
        "gain_room": "Where the room for a gain is larger than this, the gain says nothing.",
        "off_axis": "Most of a write's effect that may point elsewhere, relative.",
        "single": "How many times the floor a row's common shift may be off.",
        "massive": "How many times the floor a row's massive activations may be off to match.",
        "leak": "Most that a row to which nothing is written may change, × the noise floor.",
        "margin": "How far below the best a chosen token's logit may lie, × the noise floor.",
    },
    "Answer": {
        "precision": "In which this was computed.",
        "verdict": "The verdict in this precision alone.",
        "reason": "What it was given for.",
        "seconds": "What gathering took.",
        "observations": "Every observation's judgement.",
        "relations": "Rules that need no tolerance.",
        "worst_site": "Where the largest ratio is.",
        "worst_ratio": "The largest ratio to the noise floor.",
        "detail": "An error's full text.",
        "frames": "The calls of its traceback whose owner is known, the innermost last.",
        "harness": "Whether the harness itself failed.",
        "diagnosis": "What explains the data.",
        "predicted": "Definitions of the model by which it would pass.",
    },
    "Confirmation": {
        "witness": "Whether a second implementation confirms the reference.",
        "words": "By whom, and how closely.",
        "distance": "Of its log-probabilities from the reference, relative.",
        "floor": "The same between transformers' own ways.",
        "prompts": "Over how many prompts.",
    },
    "Gap": {
        "reason": "The cause.",
        "standing": "What the run made of its entries: used, stale, expired or redundant.",
        "date": "When it was entered.",
        "link": "Where upstream knows of it; may be empty.",
        "reproduce": "A command that shows it.",
        "whose": "Who has to fix it; may be empty.",
        "versions": "Package → versions to which it applies; empty: to all.",
        "device": "Devices to which it applies, a pattern.",
        "lines": "Where its entries begin in known.yaml.",
        "prediction": "The definition that its cells are held to; empty: none is.",
    },
    "Footer": {
        "planned": "Cells that were planned.",
        "judged": "Cells with a verdict: equal to `planned` in a complete run.",
        "verdicts": "Verdict → number of cells.",
        "exit_code": "What `conformance run` said to the shell.",
        "strict_numerics": "Whether cells that drift in bf16 fail it.",
    },
}


#: JSON has no numbers for these; records write them as strings.
NUMBER: Mapping[str, Any] = {
    "description": "A number; what JSON has no number for is one of three strings.",
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}


def results_schema() -> str:
    """Return the schema as JSON text."""
    return json.dumps(_schema(), indent=2, ensure_ascii=False)


def _schema() -> dict[str, Any]:
    schema = records.adapter(records.Results).json_schema(mode="serialization")
    definitions = schema["$defs"]
    for name, part in {**definitions, "Results": schema}.items():
        for field, words in FIELDS.get(name, {}).items():
            if field in part["properties"]:
                part["properties"][field]["description"] = words
    schema["properties"]["schema"]["const"] = records.SCHEMA
    definitions["Number"] = NUMBER
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_with_words_for_numbers(schema),
        "title": records.SCHEMA,
    }


def _with_words_for_numbers(part: Any) -> Any:
    """Replace every `number` of the schema by a reference to NUMBER."""
    if part is NUMBER:
        return part
    if isinstance(part, dict):
        schema = {key: _with_words_for_numbers(value) for key, value in part.items()}
        if schema.get("type") == "number":
            del schema["type"]
            schema["$ref"] = "#/$defs/Number"
        return schema
    if isinstance(part, list):
        return [_with_words_for_numbers(item) for item in part]
    return part
