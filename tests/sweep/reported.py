"""Writes the files of a sweep without running it."""

import itertools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fidgpt.compose.composition import compose
from fidgpt.graph import dump, fingerprint

Values = Mapping[str, str]
_TAGS = {"LearningRate": "tag:LearningRate", "WeightDecay": "tag:WeightDecay", "seed": "set:seed"}


def write_sweep(
    directory: Path,
    axes: Mapping[str, Sequence[str]],
    loss: Callable[[Values], float],
    *,
    statuses: Mapping[int, str] | None = None,
    num_steps: int = 40,
) -> Path:
    """Write a sweep of `config:debug` over axes, with final losses by a function.

    Args:
      directory: where to.
      axes: the values of each axis; `LearningRate`, `WeightDecay`, `seed`, `ablate`, or a path.
      loss: the held-out loss of a point at its end, by its values.
      statuses: of points that are not finished, by their number; they are half of the way.
      num_steps: of each run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rows = []
    for at, texts in enumerate(itertools.product(*axes.values())):
        values = dict(zip(axes, texts, strict=True))
        status = (statuses or {}).get(at, "finished")
        rows.append(_point(directory, values, loss(values), status, num_steps))
    (directory / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def _point(
    directory: Path, values: dict[str, str], loss: float, status: str, num_steps: int
) -> dict[str, Any]:
    directives = ["config:debug", *_directives(values)]
    cfg = compose(directives).config
    identity = fingerprint(cfg)
    run = directory / identity[:12]
    step = {"finished": num_steps, "waiting": 0}.get(status, num_steps // 2)
    rows = _curve(loss, step, num_steps, random.Random(identity))
    if step:
        run.mkdir()
        (run / "config.json").write_text(dump(cfg))
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = {"failed": "killed by SIGKILL", "diverged": "step 20 diverged: loss is nan."}
    return {
        "name": " ".join(t if k == "ablate" else f"{k}={t}" for k, t in values.items()),
        "fingerprint": identity,
        "status": status,
        "directory": run.name,
        "values": values,
        "directives": directives,
        "parameters": 41152,
        "num_steps": num_steps,
        "step": step,
        "metrics": dict(item for row in rows for item in row.items()),
        "attempts": int(step > 0),
        "seconds": 0.4 * step,
        "last_words": words.get(status, ""),
        "code": None,
    }


def _directives(values: Values) -> list[str]:
    given = []
    for label, text in values.items():
        if label == "ablate":
            every = ["use_qk_norm", "use_gqa", "use_gelu"]
            given += [f"fiddler:{one}" for one in every if text != f"without {one}"]
        else:
            given.append(f"{_TAGS.get(label, f'set:{label}')}={text}")
    return given


def _curve(loss: float, last: int, num_steps: int, chance: random.Random) -> list[dict[str, Any]]:
    """Return rows that fall from 5.5 to the loss, with a held-out loss at every tenth."""
    rows = []
    for step in range(1, last + 1):
        value = loss + (5.5 - loss) * math.exp(-6 * step / num_steps) * (1 - step / num_steps)
        row = {"step": step, "loss": value + chance.gauss(0, 0.02), "grad_norm": 1 + 1 / step}
        row["learning_rate"] = 1e-3 * step / num_steps
        if step % (num_steps // 10) == 0:
            row["validation/loss"] = value
        rows.append(row)
    return rows
