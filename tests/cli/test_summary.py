"""`--print=summary` and `--print=schedule`: what a run costs, and how its values change."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fidgpt.cli import train
from fidgpt.optim import Constant, Schedule
from fidgpt.train import precision
from fidgpt.train.device import machine_named
from fidgpt.train.estimates.summary_text import bytes_text, schedule_text

from .conftest import Command

DEBUG = "--config=config:debug"
SUMMARY = "--print=summary"
BASE = "--config=config:base"


@pytest.fixture(autouse=True)
def _own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIDGPT_MACHINE", "")  # put back, whatever --hardware makes of it


def rows(text: str) -> dict[str, str]:
    """The lines that are a name and a value."""
    found = (re.match(r"\s*(\S.*?)  +(.*)", line) for line in text.splitlines())
    return {match[1]: match[2] for match in found if match}


@pytest.mark.slow
def test_the_cost_of_a_run(command: Command) -> None:
    done = command(train.main, DEBUG, SUMMARY)
    assert (done.status, done.err) == (0, "")
    shown = rows(done.out)
    assert shown["parameters"].startswith("41,152 ")
    assert shown["shared"] == "embedding.weight = unembedding.weight"
    assert shown["tokens"] == "640 = 10 steps of 64"
    assert shown["activations"].endswith(" of 2 sequences")
    assert {"optimizer", "temporary", "KV cache", "time"} <= {*shown}
    assert "does not declare" not in done.out
    averaged = rows(command(train.main, DEBUG, "--config=fiddler:use_ema", SUMMARY).out)
    count = int(shown["parameters"].split()[0].replace(",", ""))
    assert averaged["optimizer"] == bytes_text(12 * count)  # two moments, and the average
    assert re.search(r"^attention +2 x Attention ", done.out, re.MULTILINE)
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.slow
def test_a_named_machine_need_not_be_there(command: Command) -> None:
    eight, one = (
        rows(command(train.main, BASE, SUMMARY, f"--hardware={name}").out)
        for name in ("h100x8", "h100x1")
    )
    assert eight["device"].startswith("8 x cuda, ")
    assert eight["device"].endswith(" 7.91 PFLOP/s at best")
    assert " of 1 sequence" in eight["activations"] and " of 8 sequences" in one["activations"]
    assert eight["FLOPs"] == one["FLOPs"]
    done = command(train.main, DEBUG, SUMMARY, "--hardware=abacusx4")
    assert done.status == 2 and "'abacusx4' is unknown" in done.err and "h100" in done.err
    done = command(train.main, DEBUG, SUMMARY, "--hardware=h100x8")
    assert done.status == 0 and " of 1 sequence" in rows(done.out)["activations"]
    assert "this would not run: batch_size=2 is too small for the 8 devices of h100x8" in done.err
    large = command(train.main, "--config=config:llama3_8b", SUMMARY, "--hardware=h100x8").out
    assert rows(large)["memory per device"].endswith("at the peak; it has 85 GB only")
    four = machine_named("rtx4090x4", torch.bfloat16)
    assert (four.size, four.device.peak("bfloat16")) == (4, 165e12)
    assert machine_named("cpux1", torch.float32).device.kind == "cpu"


@pytest.mark.slow
def test_a_batch_too_small_for_a_mesh_is_a_warning(command: Command) -> None:
    mesh = "--config=fiddler:use_mesh(replicate=2, shard=16, tensor=8)"
    batch = "--config=set:batch_size=8"
    done = command(train.main, "--config=config:llama3_70b", batch, mesh, SUMMARY)
    assert done.status == 0 and done.err.count("warning: ") == done.err.count("\n") == 1
    assert "batch_size=8 sequences are too few for 32 replicas and shards" in done.err
    assert rows(done.out)["device"].startswith("256 x ")


PEAKS = [("matrices", 0.5)]


def drawn(text: str) -> list[str]:
    """What stands in the drawing, from the top row down."""
    return [line.partition("┤")[2] or line.partition("│")[2] for line in text.splitlines()[2:12]]


def drawing(schedule: Schedule, num_steps: int, **options: Any) -> str:
    return schedule_text(schedule, **{"num_steps": num_steps, "peaks": PEAKS} | options)


def test_a_constant_is_a_full_rectangle_and_axes_have_numbers() -> None:
    text = drawing(Constant(), 3, width=40)
    assert {mark for row in drawn(text) for mark in row} == {"█"}
    assert text.splitlines()[0] == "learning rate of matrices over 3 steps"
    assert [line.split()[0] for line in text.splitlines() if "┤" in line] == ["0.5", "0.25"]
    assert text.splitlines()[13].split() == ["1", "3"]
    text = drawing(lambda step: 1.0, 500, peaks=[("matrices", 1.7e308)])
    assert {mark for row in drawn(text) for mark in row} == {"█"}
    assert text.splitlines()[-1] == "from 1.7e+308 to 1.7e+308, at most 1.7e+308"


@pytest.mark.slow
def test_whatever_changes_over_a_run_is_drawn(command: Command, tmp_path: Path) -> None:
    other = f'texts={{"other": "{tmp_path / "not looked at"}"}}'
    done = command(
        train.main,
        *("--config=config:debug", "--config=fiddler:use_wsd", "--config=tag:LearningRate=0.25"),
        *("--config=set:num_steps=100", "--config=set:batch_size=8"),
        f"--config=fiddler:use_mixture({other}, stages={{0.5: {{'other': 1}}}})",
        "--config=fiddler:grow_batch(over=0.2, multiple_of=4)",
        "--config=fiddler:grow_seq_len(over=0.2, min_seq_len=16)",
        *("--config=fiddler:use_prefetch", "--config=fiddler:use_weight_decay_schedule"),
        "--print=schedule",
    )
    assert (done.status, done.err) == (0, "")
    drawings = [one.strip().split("\n\n") for one in done.out.split("\n\n\n")]
    assert {title.removesuffix(" over 100 steps"): ends for title, _, ends in drawings} == {
        "learning rate of matrices": "from 0.025 to 0, at most 0.25",
        "weight decay of matrices": "from 0.0999753 to 0, at most 0.0999753",
        "sequence length": "from 16 to 32, at most 32",
        "batch size": "from 4 to 8, at most 8",
        "share of other": "from 0.5 to 1, at most 1",
        "share of own": "from 0.5 to 0, at most 0.5",
    }


@pytest.mark.parametrize("gain", [0.5, 2.0])  # of bfloat16 on the machine at hand
def test_the_format_is_that_of_the_named_hardware(
    command: Command, monkeypatch: pytest.MonkeyPatch, gain: float
) -> None:
    monkeypatch.setattr(precision, "_remembered_gain", lambda num_threads: gain)
    out = command(train.main, BASE, SUMMARY, "--hardware=h100x8").out
    assert "8 x cuda, bfloat16, " in out


def test_a_page_has_the_name_sizes_and_memory_of_a_config(command: Command) -> None:
    done = command(train.main, DEBUG, "--config=set:model.num_layers=3", "--print=html")
    assert done.status == 0
    assert "<title>debug model.num_layers=3</title>" in done.out
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', done.out)
    data = json.loads(text[1] if text else "")
    head, kept = data["new"][0], command(train.main, DEBUG, SUMMARY).out
    model = next(row["node"] for row in head["rows"] if row["step"] == ".model")
    # Of 41,152 parameters with two layers, those of a layer come once more.
    objects, parameters, weights = data["new"][model]["size"]
    layer = (41_152 - 257 * 32 - 32) // 2
    assert (objects, parameters, weights) == (1, 41_152 + layer, 4 * (41_152 + layer))
    assert [name.strip() for name, _ in data["facts"]][:2] == ["memory per device", "weights"]
    assert "memory per device" in kept
    # One that would not run is shown without them.
    done = command(train.main, DEBUG, "--config=set:seq_len=-1", "--print=html")
    assert (done.status, '"facts":[]' in done.out) == (0, True) and "seq_len=-1" in done.err
