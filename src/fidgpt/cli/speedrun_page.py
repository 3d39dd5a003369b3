"""The page at the end of `speedrun.py`: curves, scores, samples, hours."""

import html
import importlib.util
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fidgpt.cli.trained import load_trained
from fidgpt.files import write_whole
from fidgpt.model.generation import prepare_to_write
from fidgpt.train.scores.answering import Examinee
from fidgpt.train.scores.chats import prompt_tokens
from fidgpt.train.scores.suites import CORE

GPT2_CORE = 0.256525  # of its largest model, by the same questions
_QUESTIONS = ("What does sqrt do?", "What does join do?", "What does sort do?")
_NUM_TOKENS = 48
_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px sans-serif;max-width:60em;margin:2em auto;padding:0 1em;overflow-wrap:anywhere}"
    "td,th{padding:.2em 1em .2em 0;text-align:left}"
    "svg{max-width:100%;height:auto;background:#fff}"
)


def write_page(folder: Path, stages: Mapping[str, float], *, price: float) -> Path:
    """Write `report.html` of a chain of runs, and return its path.

    Args:
      folder: of the runs `pretrained` and `sft`, and their scores.
      stages: seconds of each.
      price: of an hour of the machine.
    """
    hours = sum(stages.values()) / 3600
    rows = [[name, f"{seconds / 60:,.1f} min"] for name, seconds in stages.items()]
    rows.append(["all", f"{hours:,.2f} h, {hours * price:,.2f} $"])
    parts = [
        "<h1>From text to a model that answers</h1>",
        "<h2>Scores</h2>",
        _table(["", "pretrained", "sft", "GPT-2"], _scores(folder)),
        "<h2>Samples</h2>",
        *(f"<p><b>{html.escape(q)}</b> {html.escape(a)}</p>" for q, a in _samples(folder / "sft")),
        "<h2>Curves</h2>",
        _curves(folder),
        "<h2>Time</h2>",
        _table(["stage", ""], rows),
    ]
    path = folder / "report.html"
    head = (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(folder.name)}</title>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
    )
    write_whole(path, f"{head}<style>{_STYLE}</style>{''.join(parts)}\n")
    return path


def _scores(folder: Path) -> list[list[str]]:
    """Return a row for each score, beside GPT-2's CORE."""
    tables: dict[str, dict[str, str]] = {}
    for run in ("pretrained", "sft"):
        lines = (folder / run / "metrics.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        for name in ("validation/bits_per_byte", "validation/loss"):
            if name in last:
                tables.setdefault(name, {})[run] = f"{last[name]:.4f}"
        path = folder / f"{run}.json"
        scores: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        for task, row in scores.items():
            metric = "centered" if task == CORE else "acc"
            error = row.get(f"{metric}_stderr", 0.0)
            tables.setdefault(task, {})[run] = f"{row.get(metric, 0.0):.4f} &plusmn; {error:.4f}"
    tables.setdefault(CORE, {})["gpt2"] = f"{GPT2_CORE:.4f}"
    return [
        [name, *(row.get(run, "") for run in ("pretrained", "sft", "gpt2"))]
        for name, row in tables.items()
    ]


def _samples(path: Path) -> list[tuple[str, str]]:
    """Return questions and the most likely answers."""
    trainer, tokenizer = load_trained(path, has_flags=False)
    prepare_to_write(trainer.model)
    examinee = Examinee(trainer.model, tokenizer, trainer.seq_len)
    prompts = [prompt_tokens(question, tokenizer) for question in _QUESTIONS]
    return [*zip(_QUESTIONS, examinee.write(prompts, num_tokens=_NUM_TOKENS), strict=True)]


def _curves(folder: Path) -> str:
    """Return the losses of both runs as SVG; a remark if Matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return '<p>Curves need Matplotlib: pip install "fidgpt[plot]"</p>'
    from fidgpt import curves

    runs = curves.read_runs([folder / "pretrained", folder / "sft"])
    metrics = curves.chosen_metrics(runs, ["loss"])
    lines = {m: [c for run in runs if (c := curves.curve_of(run, m, over="step"))] for m in metrics}
    buffer = io.StringIO()
    curves.draw(lines, over="step").savefig(buffer, format="svg")
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"<tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"
