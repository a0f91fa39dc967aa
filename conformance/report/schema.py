"""The published JSON schema of results.json: the records' own, with every field explained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from conformance import records

#: Record → field → what it holds. A field without a line here fails the tests.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "Results": {
        "schema": "Name and version of this format.",
        "run": "The run itself: when, how long, which command.",
        "environment": "The machine that judged, its versions, and the thresholds.",
        "models": "The models of the run and the checkpoints that were used.",
        "backends": "The columns of the matrix.",
        "scenarios": "What was asked, with its meaning and both of its sources.",
        "groups": "What each worker (one model on one backend) said about itself.",
        "cells": "One entry for every planned cell.",
        "footer": "Written last: without it the file is incomplete and refused.",
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
        "versions": "Package → version, of the parent process.",
        "thresholds": "What the judge gated on.",
    },
    "Calibration": {
        "k_med": "Threshold on the median token.",
        "k_max": "Threshold on the worst token.",
        "cap_med": "What k_med may be at most.",
        "cap_max": "What k_max may be at most.",
        "cases_per_alarm": "One false alarm in so many clean cases is accepted.",
        "cases": "Clean cases: model × seed × prompts × scenario × case.",
        "held_out": "Honest runs judged as if they were a backend.",
        "alarms": "Those of them that are beyond the thresholds.",
        "date": "When, ISO 8601.",
        "device": "Where the honest runs were made.",
        "versions": "Package → version.",
        "models": "What each model needs.",
        "beyond": "Models that need more than the caps: reported, not accommodated.",
        "scores": "Digest of every held-out run's score.",
        "digest": "Of all the other fields: the file was not edited.",
    },
    "ModelScores": {
        "model": "The model's name.",
        "cases": "Clean cases of it.",
        "held_out": "Honest runs judged.",
        "med": "What k_med would have to be for this model alone.",
        "max": "What k_max would have to be for this model alone.",
        "largest_med": "The largest median that was seen.",
        "largest_max": "The largest worst token that was seen.",
        "worst": "Where that was: case, honest run and observation.",
        "alarms": "Honest runs beyond the thresholds.",
    },
    "Thresholds": {
        "k_med": "Most the median token may be off, in multiples of the noise floor.",
        "k_max": "Most the worst token may be off, in multiples of the noise floor.",
        "drift_max": "Up to this worst token a diffuse error is called drift.",
        "drift_spread": "Least spread of an error that is called drift (1: all tokens alike).",
        "gain_tolerance": "How far a gain may be from 0 or 1 in any case.",
        "gain_sigmas": "The same in standard deviations of the honest runs' gain.",
        "off_axis": "Most of a write's effect that may point elsewhere, relative.",
        "power": "Largest standard deviation of the gain with which the check still says anything.",
        "margin": "A flipped token is benign up to this many times the noise of its logits.",
        "source": "Where these numbers come from.",
    },
    "ModelInfo": {
        "id": "The model's name in models.yaml.",
        "architecture": "The transformers `model_type`.",
        "source": "Where the weights came from.",
        "digest": "Of the checkpoint.",
        "layers": "Number of decoder layers.",
        "width": "Width of the residual stream.",
    },
    "Column": {
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
        "model": "The model's name.",
        "backend": "The backend's name.",
        "status": "How the worker's work ended; not a judgement.",
        "reason": "Why it is not `ok`.",
        "layout": "The reading of the residual stream that agrees with the truth.",
        "layout_tried": "Reading → distance from the truth, multiples of noise.",
        "identity": "What the engine proved to be: stages, eager mode, device and so on.",
        "versions": "Package → version, in the worker.",
        "load_seconds": "Seconds until the engine was ready.",
        "seconds": "Seconds of the whole worker.",
        "peak_mib": "Most memory of the worker, MiB.",
        "log_tail": "The end of its log.",
        "starts": "How many workers it took; more than 1 after a crash or timeout.",
        "reused": "Whether observations of an earlier run were taken.",
    },
    "CellResult": {
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
        "harness": "The harness failed here: never scored as the product's.",
        "diagnosis": "What explains a failure, in words.",
        "attribution": "Who has to mend a failed cell; null for one that did not fail.",
        "expected": "Why this verdict is expected; empty when it is not.",
        "layers": "The scenario's own names → layer indices.",
        "prompt_ids": "Token ids of each prompt.",
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
        "error": "Relative L2 distance from the truth, median over tokens.",
        "floor": "The same of honest bf16 runs: the noise floor.",
        "smallest": "Smallest relative error that would have been found.",
        "gain": "Did the write land; null where nothing was written.",
        "shape": "Shape of the tensor.",
        "dtype": "Its type.",
        "extra": "Further figures that do not gate.",
    },
    "Gain": {
        "g": "Candidate's change along the truth's: 1 landed, 0 dropped, 2 twice, −1 sign.",
        "h": "What of the candidate's change points elsewhere, relative.",
        "sigma": "Standard deviation of g among honest runs.",
        "tokens": "g of each token; NaN where the truth does not change.",
    },
    "Relation": {
        "name": "The rule.",
        "holds": "Whether it held.",
        "detail": "Where it did not.",
    },
    "Footer": {
        "planned": "Cells that were planned.",
        "judged": "Cells with a verdict: equal to `planned` in a complete run.",
        "verdicts": "Verdict → number of cells.",
        "exit_code": "What `conformance run` said to the shell.",
    },
}


#: JSON has no word for these; records write them as strings.
NUMBER: Mapping[str, Any] = {
    "description": "A number; what JSON has no number for is one of three strings.",
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}


def results_schema() -> str:
    """The schema as JSON text."""
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
    """Every `number` of the schema as a reference to NUMBER."""
    if part is NUMBER:
        return part
    if isinstance(part, dict):
        found = {key: _with_words_for_numbers(value) for key, value in part.items()}
        if found.get("type") == "number":
            del found["type"]
            found["$ref"] = "#/$defs/Number"
        return found
    if isinstance(part, list):
        return [_with_words_for_numbers(item) for item in part]
    return part
