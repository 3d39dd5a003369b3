"""Points of a sweep: their order, identity, names and cost, and the mistakes that stop a sweep."""

import json
from pathlib import Path
from typing import Any

import pytest

from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigErrors, fingerprint
from fidgpt.sweep import Sweep, ablation, axis, pairs, plan, repeat
from fidgpt.sweep.axes import Axis, Item
from fidgpt.sweep.results import new_row

QUICK = ["config:debug", "fiddler:smoke_test(2)", "set:samples=None"]
RATES = axis("tag:LearningRate=1e-3,3e-3")
PARTS = axis("fiddler:use_gelu,use_gqa(1)")


def names(*items: Item) -> list[str]:
    return [point.name for point in plan([*QUICK, *items]).points]


def mistakes(*items: Item) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        plan([*QUICK, *items])
    return caught.value.messages


@pytest.mark.slow
def test_axes_multiply_in_their_place_among_the_directives() -> None:
    made = plan(["config:debug", axis("set:num_steps=4,8"), "set:samples=None", RATES]).points
    assert len(made) == len({point.fingerprint for point in made}) == 4
    assert made[1].directives == (
        *("config:debug", "set:num_steps=4", "set:samples=None", "tag:LearningRate=3e-3"),
    )
    assert len(plan([axis("config:debug,base")]).points) == 2


@pytest.mark.slow
@pytest.mark.parametrize("late", ["set:seq_len=16", "fiddler:unroll"])
def test_a_fingerprint_is_that_of_the_composed_graph(late: str) -> None:
    made = plan([*QUICK, RATES, PARTS, late, repeat("seed:2")])
    assert len(made.points) == 8
    for point in made.points:
        assert point.fingerprint == fingerprint(compose(point.directives).config)
    last = {"LearningRate": "3e-3", "fiddler": "use_gqa(1)", "seed": "1"}
    assert made.points[-1].values == last


@pytest.mark.slow
def test_equal_runs_are_folded_and_shared_beginnings_stay_as_they_are() -> None:
    wide = axis("set:model.hidden_dim=32,64,32")
    made = plan([*QUICK, wide, PARTS])
    assert made.num_folded == 2
    assert [point.cost.parameters for point in made.points] == [
        plan(list(point.directives)).points[0].cost.parameters for point in made.points
    ]
    assert names(axis("tag:LearningRate=1e-3,0.001,3e-3")) == names(RATES)


EPS = ("set:model.blocks[0].mlp_norm.eps=1e-3,1e-4", "set:model.norm.eps=1e-3,1e-4")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (
            [RATES, axis("set:seq_len=16"), axis("fiddler:use_gelu")],
            ["LearningRate=1e-3", "LearningRate=3e-3"],
        ),
        ([PARTS], ["use_gelu", "use_gqa(1)"]),
        (["set:seed=7", repeat("seed:2")], ["seed=7", "seed=8"]),
        (
            [pairs("set:seq_len=16,32;set:model.hidden_dim=64,128")],
            ["seq_len=16 hidden_dim=64", "seq_len=32 hidden_dim=128"],
        ),
        (
            [ablation("fiddler:use_gelu,use_gqa(1)")],
            ["all", "without use_gelu", "without use_gqa(1)"],
        ),
    ],
)
def test_names_show_what_varies(items: list[Item], expected: list[str]) -> None:
    assert names(*items) == expected


@pytest.mark.slow
def test_a_plan_counts_the_parameters_that_move() -> None:
    items = [axis("tag:HiddenDim=32,64"), PARTS, repeat("seed:2")]
    assert plan([*QUICK, *items]).moves == [
        "tag:HiddenDim changes 7 parameters",
        "fiddler:use_gelu changes 1 parameter",
        "fiddler:use_gqa(1) changes 1 parameter",
        "set:seed changes 2 parameters",
    ]


@pytest.mark.parametrize(
    "late", ["tag:LearningRate=5e-4", "set:optimizer.lr*=2", "use:optimizer=adamw(lr=1)"]
)
def test_overwriting_a_swept_value_is_an_error(late: str) -> None:
    assert mistakes(RATES, late)[-1] == (
        f"{late} (directive 5) overwrites what {RATES.text} chose of optimizer.lr.\n"
        "  Put it before the axis, or remove one of them."
    )


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        (RATES, axis("set:optimizer.lr=1,2"), "optimizer.lr"),
        (axis("set:optimizer.lr=1,2"), pairs("tag:LearningRate=3,4;set:seed=1,2"), "optimizer.lr"),
        (axis(EPS[1]), axis("use:model.norm=RMSNorm(eps=1),RMSNorm(eps=2)"), "model.norm.eps"),
    ],
)
def test_two_axes_that_set_one_value_are_both_named(first: Axis, second: Axis, path: str) -> None:
    (mistake,) = mistakes(first, second)
    assert mistake.startswith(f"{second.text} overwrites what {first.text} chose of {path}.")


SHAPE = "hidden_dim=33 must be a multiple of head_dim=16"


@pytest.mark.parametrize(
    ("items", "num_mistakes", "text"),
    [
        (
            [pairs("set:seed=1,2;tag:Seed=3,4")],
            1,
            "3,4 chose of seed.",
        ),
        ([axis("tag:LearningRate=1e-3,0.001")], 1, "changes nothing"),
        ([axis("tag:Window=1,2")], 2, "no parameter of Trainer carries the tag Window"),
        (
            [axis("set:model.hidden_dim=33,32"), repeat("seed:2")],
            1,
            "set:model.hidden_dim=33 set:seed+=0:\nset:model.hidden_dim=33 set:seed+=1:\n"
            f"  model.blocks[0].attention (Attention): {SHAPE}",
        ),
        ([axis("set:model.hidden_dim=32,33,x"), axis("set:seed=1,y")], 3, "and 2 more of the kind"),
    ],
)
def test_every_mistake_is_named_once(items: list[Item], num_mistakes: int, text: str) -> None:
    found = mistakes(*items)
    assert len(found) == num_mistakes and text in "\n".join(found)


def test_the_directory_does_not_depend_on_the_values() -> None:
    first = Sweep("config:debug", axis("set:seed=1,2")).directory
    assert first == Sweep("config:debug", axis("set:seed=1,2,3")).directory
    assert first != Sweep("config:debug", axis("set:num_steps=1,2")).directory
    assert first != Sweep("config:base", axis("set:seed=1,2")).directory
    assert str(first).startswith("runs/sweep-debug-")


@pytest.mark.slow
def test_a_notebook_shows_the_points_and_their_results(tmp_path: Path) -> None:
    rates = axis("tag:LearningRate=1e-3,3e-3,1e-2")
    sweep = Sweep("config:debug", rates, directory=tmp_path / "sweep")
    shown = sweep._repr_html_()
    assert shown.count("waiting") == 3 and "0 of 3 done" in shown and "LearningRate=1e-3" in shown
    assert "41,152" in shown and "changes 1 parameter" in shown
    ends: list[dict[str, Any]] = [
        {"status": "finished", "metrics": {"validation/loss": 3.25}},
        {"status": "diverged", "last_words": "loss is <nan>"},
    ]
    rows = [new_row(job) | end for job, end in zip(sweep.jobs, ends, strict=False)]
    sweep.directory.mkdir()
    (sweep.directory / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = sweep._repr_html_()
    assert "finished" in shown and "3.2500" in shown and "1 of 3 done, 1 failed" in shown
    assert "diverged" in shown and "loss is &lt;nan&gt;" in shown
