"""Search spaces, samplers, and what is refused before anything runs."""

import pytest

pytest.importorskip("optuna")

from optuna.distributions import CategoricalDistribution as OneOf
from optuna.distributions import FloatDistribution as Continuous
from optuna.distributions import IntDistribution as Whole

from fidgpt.graph import ConfigError
from fidgpt.sweep.search import Distribution, Search, space

RATE = "tag:LearningRate=log(1e-5,1e-1)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tag:LearningRate=log(1e-5, 1e-1)", Continuous(1e-5, 1e-1, log=True)),
        ("set:a.dropout=lin(0,0.5)", Continuous(0.0, 0.5)),
        ("set:seq_len=range(64,513,64)", Whole(64, 512, step=64)),
        ("set:seq_len=range(64,512,64)", Whole(64, 448, step=64)),
        ("set:num_layers=range(1,4)", Whole(1, 3)),
        ("set:a=lin(0,1,3)", OneOf(("0", "0.5", "1"))),
        ("set:a=range(0,1,0.5)", OneOf(("0", "0.5"))),
        ("fiddler:use_rope,use_gqa(1, 2)", OneOf(("use_rope", "use_gqa(1, 2)"))),
        ("use:model.norm=RMSNorm,LayerNorm(eps=1)", OneOf(("RMSNorm", "LayerNorm(eps=1)"))),
    ],
)
def test_what_a_space_holds(text: str, expected: Distribution) -> None:
    assert space(text).distribution == expected


def test_values_are_written_with_few_digits() -> None:
    assert space(RATE).choice(0.00123456789).directives == ("tag:LearningRate=0.0012346",)
    assert space(RATE).choice(0.1).directives == ("tag:LearningRate=0.1",)
    assert space("set:seq_len*=range(1,4)").choice(2).directives == ("set:seq_len*=2",)
    one = space("use:model.norm=RMSNorm,LayerNorm")
    assert one.choice("LayerNorm").directives == ("use:model.norm=LayerNorm",)
    assert one.name == "use:model.norm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tag:LearningRate=1e-3", "has a single value: write log"),
        ("tag:LearningRate=log(1e-1,1e-5)", "0.1 must be below 1e-05"),
        ("tag:LearningRate=log(0,1)", "log needs numbers above 0"),
        ("set:seq_len=range(64,65)", "fewer than two integers"),
        ("tag:LearningRate=log(1e-1)", r"write log\(first, last, count\)"),
        ("tag:LearningRate", "has no values"),
        ("fiddler:use_rope", "has a single value"),
    ],
)
def test_invalid_ranges_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space(text)


@pytest.mark.parametrize(
    ("spaces", "sampler", "stop", "message"),
    [
        ([RATE], "tpee:5", None, "--search=tpee: there is no such sampler. Did you mean tpe"),
        ([RATE], "", None, "there is no such sampler. There are cmaes, grid, random, tpe"),
        ([RATE], "tpe", None, "needs the number of points: write --search=tpe:50"),
        ([RATE], "grid", None, "log\\(first, last, count\\)"),
        ([RATE], "cmaes:5", None, "at least two continuous ranges"),
        ([RATE], "tpe:5", "asah", "there is no such rule. Did you mean asha"),
        ([RATE, "tag:LearningRate=1,2"], "tpe:5", None, "two spaces choose tag:LearningRate"),
        ([], "tpe:5", None, "needs a space"),
    ],
)
def test_invalid_searches_are_refused(
    spaces: list[str], sampler: str, stop: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Search("config:debug", *map(space, spaces), sampler=sampler, objective="loss", stop=stop)


def test_errors_that_all_points_share_are_raised_first() -> None:
    made = Search("config:debug", space(RATE), sampler="tpe:5", objective="validatoin/loss")
    with pytest.raises(ConfigError, match="no evaluator 'validatoin'. Did you mean validation"):
        _ = made.points
    late = "tag:LearningRate=0.1"
    made = Search("config:debug", space(RATE), late, sampler="tpe:5", objective="loss")
    with pytest.raises(ConfigError, match="overwrites what --space=tag:LearningRate"):
        _ = made.points
    none = space("tag:Missing=lin(0,1)")
    made = Search("config:debug", none, sampler="tpe:5", objective="loss")
    with pytest.raises(ConfigError, match="Missing"):
        _ = made.points


def test_a_grid_defaults_to_all_its_points() -> None:
    spaces = [space("set:seed=1,2,3"), space("set:seq_len=range(16,33,16)")]
    assert Search(*spaces, sampler="grid", objective="loss").num_trials == 6
    assert Search(*spaces, sampler="grid:4", objective="loss").num_trials == 4
    assert Search(*spaces, sampler="grid:50", objective="loss").num_trials == 6
