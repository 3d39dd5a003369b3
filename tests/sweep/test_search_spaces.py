"""What a search may choose, who chooses, and what is refused before anything runs."""

import pytest

pytest.importorskip("optuna")

from fidgpt.graph import ConfigError
from fidgpt.sweep.search import Search, space
from fidgpt.sweep.search.space import Continuous, OneOf, Range, Whole

RATE = "tag:LearningRate=log(1e-5,1e-1)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tag:LearningRate=log(1e-5, 1e-1)", Continuous(1e-5, 1e-1, log=True)),
        ("set:a.dropout=lin(0,0.5)", Continuous(0.0, 0.5, log=False)),
        ("set:seq_len=range(64,513,64)", Whole(64, 512, 64)),
        ("set:seq_len=range(64,512,64)", Whole(64, 448, 64)),
        ("set:num_layers=range(1,4)", Whole(1, 3, 1)),
        ("set:a=lin(0,1,3)", OneOf(("0", "0.5", "1"))),
        ("set:a=range(0,1,0.5)", OneOf(("0", "0.5"))),
        ("fiddler:use_rope,use_gqa(1, 2)", OneOf(("use_rope", "use_gqa(1, 2)"))),
        ("use:model.norm=RMSNorm,LayerNorm(eps=1)", OneOf(("RMSNorm", "LayerNorm(eps=1)"))),
    ],
)
def test_what_a_space_holds(text: str, expected: Range) -> None:
    assert space(text).range == expected


def test_a_value_is_said_so_that_one_can_read_and_say_it_again() -> None:
    assert space(RATE).choice(0.00123456789).directives == ("tag:LearningRate=0.0012346",)
    assert space(RATE).choice(0.1).directives == ("tag:LearningRate=0.1",)
    assert space("set:seq_len*=range(1,4)").choice(2).directives == ("set:seq_len*=2",)
    one = space("use:model.norm=RMSNorm,LayerNorm")
    assert one.choice("LayerNorm").directives == ("use:model.norm=LayerNorm",)
    assert one.name == "use:model.norm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tag:LearningRate=1e-3", "is no range: write log"),
        ("tag:LearningRate=log(1e-1,1e-5)", "0.1 is not below 1e-05"),
        ("tag:LearningRate=log(0,1)", "goes through 0"),
        ("set:seq_len=range(64,65)", "holds no two whole numbers"),
        ("tag:LearningRate=log(1e-1)", "needs three numbers"),
        ("tag:LearningRate", "has no values"),
        ("fiddler:use_rope", "is no range"),
    ],
)
def test_what_is_no_range_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space(text)


@pytest.mark.parametrize(
    ("spaces", "sampler", "stop", "message"),
    [
        ([RATE], "tpee:5", None, "--search=tpee is no sampler. Did you mean tpe"),
        ([RATE], "", None, "--search= is no sampler. There are cmaes, grid, random, tpe"),
        ([RATE], "tpe", None, "says not how many points: write --search=tpe:50"),
        ([RATE], "grid", None, "log\\(first, last, count\\)"),
        ([RATE], "cmaes:5", None, "needs two ranges of numbers"),
        ([RATE], "tpe:5", "asah", "--stop=asah is no rule. Did you mean asha"),
        ([RATE, "tag:LearningRate=1,2"], "tpe:5", None, "two spaces choose tag:LearningRate"),
        ([], "tpe:5", None, "needs a space"),
    ],
)
def test_what_makes_no_search_is_refused(
    spaces: list[str], sampler: str, stop: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Search("config:debug", *map(space, spaces), sampler=sampler, objective="loss", stop=stop)


def test_a_mistake_of_all_points_is_told_before_the_first() -> None:
    made = Search("config:debug", space(RATE), sampler="tpe:5", objective="validatoin/loss")
    with pytest.raises(ConfigError, match="no evaluator 'validatoin'. Did you mean validation"):
        _ = made.points
    late = "tag:LearningRate=0.1"
    made = Search("config:debug", space(RATE), late, sampler="tpe:5", objective="loss")
    with pytest.raises(ConfigError, match="overwrites what --space=tag:LearningRate"):
        _ = made.points
    none = space("tag:Nobody=lin(0,1)")
    made = Search("config:debug", none, sampler="tpe:5", objective="loss")
    with pytest.raises(ConfigError, match="Nobody"):
        _ = made.points


def test_a_grid_has_all_its_points_unless_told() -> None:
    spaces = [space("set:seed=1,2,3"), space("set:seq_len=range(16,33,16)")]
    assert Search(*spaces, sampler="grid", objective="loss").num_trials == 6
    assert Search(*spaces, sampler="grid:4", objective="loss").num_trials == 4
    assert Search(*spaces, sampler="grid:50", objective="loss").num_trials == 6
