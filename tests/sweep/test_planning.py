"""From axes to points: their order, identity and names, and what keeps all from starting."""

from pathlib import Path

import fiddle as fdl
import pytest

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.graph import ConfigError, ConfigErrors, fingerprint
from fidgpt.sweep import Sweep, ablation, axis, pairs, plan, repeat
from fidgpt.sweep import points as dry_runs
from fidgpt.sweep.axes import Axis, Item
from fidgpt.train import Trainer

QUICK = ["config:debug", "fiddler:smoke_test(2)", "set:samples=None"]
RATES = axis("tag:LearningRate=1e-3,3e-3")


def names(*items: Item) -> list[str]:
    return [point.name for point in plan([*QUICK, *items]).points]


def mistakes(*items: Item) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        plan([*QUICK, *items])
    return caught.value.messages


def test_directives_keep_their_place_among_the_axes() -> None:
    points = plan(["config:debug", axis("set:num_steps=4,8"), "set:samples=None", RATES]).points
    assert points[1].directives == (
        "config:debug",
        "set:num_steps=4",
        "set:samples=None",
        "tag:LearningRate=3e-3",
    )


@pytest.mark.parametrize("late", ["set:seq_len=16", "fiddler:unroll"])
def test_the_fingerprint_is_that_of_the_graph_which_the_directives_make(late: str) -> None:
    catalogue = own_catalogue()
    points = plan([*QUICK, RATES, axis("fiddler:use_gelu,use_gqa(1)"), late, repeat("seed:2")])
    assert len(points.points) == 8
    for point in points.points:
        assert point.fingerprint == fingerprint(compose(point.directives, catalogue))


def test_points_that_share_a_beginning_do_not_change_it() -> None:
    wide = axis("set:model.hidden_dim=32,64,32")
    made = plan([*QUICK, wide, axis("fiddler:use_gelu,use_gqa(1)")])
    assert made.num_folded == 2
    assert [point.cost.parameters for point in made.points] == [
        plan([*QUICK, *point.varied]).points[0].cost.parameters for point in made.points
    ]


def test_names_are_made_of_what_varies() -> None:
    assert names(RATES, axis("set:seq_len=16"), axis("fiddler:use_gelu,use_gqa(1)")) == [
        "LearningRate=1e-3 use_gelu",
        "LearningRate=1e-3 use_gqa(1)",
        "LearningRate=3e-3 use_gelu",
        "LearningRate=3e-3 use_gqa(1)",
    ]
    assert names("set:seed=7", repeat("seed:2")) == ["seed=7", "seed=8"]
    assert names(axis("set:seq_len=16")) == ["seq_len=16"]
    assert names(pairs("set:seq_len=16,32;set:model.hidden_dim=64,128")) == [
        "seq_len=16 hidden_dim=64",
        "seq_len=32 hidden_dim=128",
    ]
    assert names(ablation("fiddler:use_gelu,use_gqa(1)")) == [
        "all",
        "without use_gelu",
        "without use_gqa(1)",
    ]
    places = "set:model.blocks[0].mlp_norm.eps=1e-3,1e-4", "set:model.norm.eps=1e-3,1e-4"
    assert names(*map(axis, places))[1] == "model.blocks[0].mlp_norm.eps=1e-3 model.norm.eps=1e-4"


def test_values_are_those_of_the_axes() -> None:
    made = plan([*QUICK, RATES, axis("fiddler:use_gelu,use_gqa(1)"), repeat("seed:2")])
    assert made.labels == ["LearningRate", "fiddler", "seed"]
    assert made.points[-1].values == {
        "LearningRate": "3e-3",
        "fiddler": "use_gqa(1)",
        "seed": "1",
    }


def test_the_plan_says_how_many_parameters_are_moved() -> None:
    wide = axis("tag:HiddenDim=32,64")
    assert plan([*QUICK, wide, axis("fiddler:use_gelu,use_gqa(1)"), repeat("seed:2")]).moves == [
        "tag:HiddenDim moves 7 parameters",
        "fiddler:use_gelu moves 1 parameter",
        "fiddler:use_gqa(1) moves 1 parameter",
        "set:seed moves 2 parameters",
    ]


@pytest.mark.parametrize(
    ("late", "path"),
    [
        ("tag:LearningRate=5e-4", "optimizer.lr"),
        ("set:optimizer.lr*=2", "optimizer.lr"),
        ("use:optimizer=adamw(lr=1)", "optimizer.lr"),
    ],
)
def test_what_overwrites_a_swept_value_is_an_error(late: str, path: str) -> None:
    assert mistakes(RATES, late)[-1] == (
        f"{late} (directive 5) overwrites what {RATES.text} chose of {path}.\n"
        "  Put it before the axis, or remove one of them."
    )


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        (RATES, axis("set:optimizer.lr=1,2"), "optimizer.lr"),
        (axis("set:optimizer.lr=1,2"), pairs("tag:LearningRate=3,4;set:seed=1,2"), "optimizer.lr"),
        (
            axis("set:model.norm.eps=1e-3,1e-4"),
            axis("use:model.norm=RMSNorm(eps=1),RMSNorm(eps=2)"),
            "",
        ),
    ],
)
def test_of_two_axes_that_say_one_thing_both_are_named(
    first: Axis, second: Axis, path: str
) -> None:
    (mistake,) = mistakes(first, second)
    assert mistake.startswith(f"{first.text} sets {path or 'model.norm.eps'} in vain, as ")
    assert f"as {second.text} sets it again" in mistake


def test_an_axis_that_says_one_thing_twice_is_told_so() -> None:
    (mistake,) = mistakes(pairs("set:seed=1,2;tag:Seed=3,4"))
    assert mistake == "--zip=set:seed=1,2;tag:Seed=3,4 sets seed twice: remove one of them."


def test_axes_may_change_what_others_chose_if_something_is_left_of_both() -> None:
    assert len(names(axis("set:seed=1,2"), repeat("seed:2"))) == 3  # 1 and 2, and then 2 and 3
    every = axis("set:**.eps=1e-3,1e-4")
    assert len(names(every, axis("set:model.norm.eps=1e-5,1e-6"))) == 4


def test_what_stands_beside_a_swept_value_is_none() -> None:
    assert len(names(RATES, "tag:WeightDecay=0", "use:optimizer=adamw(weight_decay=0.2)")) == 2
    assert len(names("tag:LearningRate=5e-4", RATES)) == 2


def test_a_fiddler_that_overwrites_one_of_many_is_found() -> None:
    (mistake,) = mistakes(
        axis("set:model.blocks[0].mlp.ffn_dim=16,32"), "use:model.blocks[*].mlp=GELU(ffn_dim=24)"
    )[-1:]
    assert "overwrites what --sweep=set:model.blocks[0].mlp.ffn_dim=16,32" in mistake


def test_every_point_that_breaks_one_rule_is_named() -> None:
    (mistake,) = mistakes(axis("set:model.hidden_dim=33,32"), repeat("seed:2"))
    assert mistake.startswith(
        "set:model.hidden_dim=33 set:seed+=0:\nset:model.hidden_dim=33 set:seed+=1:\n"
        "  model.blocks[0].attention (Attention): hidden_dim=33 is not a whole"
    )


def test_a_tag_that_no_parameter_carries_is_an_error() -> None:
    (first, _) = mistakes(axis("tag:Window=1,2"))
    assert "no parameter of Trainer carries the tag Window" in first


def test_a_base_that_is_wrong_is_told_once() -> None:
    with pytest.raises(ConfigErrors) as caught:
        plan(["config:nobody", RATES, repeat("seed:2")])
    assert len(caught.value.messages) == 1
    with pytest.raises(ConfigErrors) as caught:
        plan(["set:nothing=1", axis("set:seed=1,2")])
    assert len(caught.value.messages) == 1


def test_each_model_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    def build(cfg: fdl.Config) -> Trainer:
        built.append(1)
        return really(cfg)

    really = dry_runs.build_trainer
    monkeypatch.setattr(dry_runs, "build_trainer", build)
    axes = [axis("set:model.hidden_dim=32,64"), axis("tag:LearningRate=log(1e-4,1e-2,8)")]
    assert len(plan([*QUICK, *axes, repeat("seed:2")]).points) == 32
    assert len(built) == 2


def test_tied_and_untied_models_are_two() -> None:
    tied, untied = plan([*QUICK, ablation("untie:model.unembedding.weight;tag:Seed=1")]).points[1:]
    assert {tied.cost.parameters, untied.cost.parameters} == {41_152, 41_152 + 257 * 32}


def test_a_part_that_refuses_late_is_found_where_the_model_is_known_already() -> None:
    found = mistakes(axis("set:evaluators.validation.every=10,0"), repeat("seed:2"))
    assert len(found) == 1 and "every=0" in found[0]


def test_a_sweep_may_begin_with_a_graph(tmp_path: Path) -> None:
    cfg = compose(["config:debug", "set:seed=4"], own_catalogue())
    sweep = Sweep(cfg, axis("tag:LearningRate=1e-3,3e-3"), directory=tmp_path)
    assert len(sweep.points) == 2
    assert sweep.points[0].directives[0] == f"config_file:{next(tmp_path.iterdir())}"
    with pytest.raises(ConfigError, match="before all directives"):
        Sweep("config:debug", cfg)


def test_the_directory_is_the_same_whatever_the_values() -> None:
    first = Sweep("config:debug", axis("set:seed=1,2")).directory
    assert first == Sweep("config:debug", axis("set:seed=1,2,3")).directory
    assert first != Sweep("config:debug", axis("set:num_steps=1,2")).directory
    assert first != Sweep("config:base", axis("set:seed=1,2")).directory
    assert str(first).startswith("runs/sweep-debug-")


def test_a_sweep_shows_itself() -> None:
    shown = Sweep("config:debug", RATES)._repr_html_()
    assert "LearningRate=3e-3" in shown and "41,152" in shown and "moves 1 parameter" in shown
