"""The page at the end of `speedrun.py`: curves, scores, samples, hours."""

import importlib.util
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from fidgpt.cli.trained import load_trained
from fidgpt.files import write_whole
from fidgpt.model.generation import prepare_to_write
from fidgpt.train.scores import answering, suites

GPT2_CORE = 0.256525  # of its largest model, by the same questions
_QUESTIONS = ("What does sqrt do?", "What does join do?", "What does sort do?")
_NUM_TOKENS = 48


def write_page(folder: Path, stages: Mapping[str, float], *, price: float) -> Path:
    """Write `report.html` of a chain of runs, and return its path.

    Args:
      folder: of the runs `pretrained` and `sft`, and their scores.
      stages: seconds of each.
      price: of an hour of the machine.
    """
    text = Path(__file__).with_name("speedrun.html").read_text(encoding="utf-8")
    page = jinja2.Template(text, autoescape=True).render(
        name=folder.name,
        scores=_scores(folder),
        samples=_samples(folder / "sft"),
        curves=_curves(folder),
        stages=stages,
        hours=sum(stages.values()) / 3600,
        price=price,
    )
    write_whole(path := folder / "report.html", page)
    return path


def _scores(folder: Path) -> dict[str, dict[str, str]]:
    """Return each score of the runs, by their names, beside GPT-2's CORE."""
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
            metric = "centered" if task == suites.CORE else "acc"
            error = row.get(f"{metric}_stderr", 0.0)
            tables.setdefault(task, {})[run] = f"{row.get(metric, 0.0):.4f} ± {error:.4f}"
    tables.setdefault(suites.CORE, {})["gpt2"] = f"{GPT2_CORE:.4f}"
    return tables


def _samples(path: Path) -> list[tuple[str, str]]:
    """Return questions and the most likely answers."""
    trainer, tokenizer = load_trained(path, has_flags=False)
    prepare_to_write(trainer.model)
    examinee = answering.Examinee(trainer.model, tokenizer, trainer.seq_len)
    prompts = [suites.prompt_tokens(question, tokenizer) for question in _QUESTIONS]
    return [*zip(_QUESTIONS, examinee.write(prompts, num_tokens=_NUM_TOKENS), strict=True)]


def _curves(folder: Path) -> str:
    """Return the losses of both runs as SVG; "" if Matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return ""
    from fidgpt import curves

    runs = curves.read_runs([folder / "pretrained", folder / "sft"])
    metrics = curves.chosen_metrics(runs, ["loss"])
    lines = {m: [c for run in runs if (c := curves.curve_of(run, m, over="step"))] for m in metrics}
    buffer = io.StringIO()
    curves.draw(lines, over="step").savefig(buffer, format="svg")
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]
