"""Axes of a sweep: lists, ranges of three kinds, pairs, repetitions and ablations."""

from collections.abc import Callable

import pytest

from fidgpt.graph import ConfigError
from fidgpt.sweep import Axis, ablation, axis, axis_values, pairs, repeat
from fidgpt.sweep.axes import expanded


@pytest.mark.parametrize(
    ("text", "values"),
    {
        "3e-4": "3e-4",
        "log(1e-4,1e-2,3)": "0.0001 0.001 0.01",
        "log(1024,65536,7)": "1024 2048 4096 8192 16384 32768 65536",
        "lin(0,0.3,4)": "0 0.1 0.2 0.3",
        "range(0,10,4)": "0 4 8",
        "range(2,5)": "2 3 4",
        "1..5": "1 2 3 4 5",
        "range(10**15+1,10**15+3)": "1000000000000001 1000000000000002",
        "range(0,0.5,0.1)": "0 0.1 0.2 0.3 0.4",
        "range(3,0,-1)": "3 2 1",
        "[lin(0,1,2)]": "[lin(0,1,2)]",
    }.items(),
)
def test_a_value_may_stand_for_a_range(text: str, values: str) -> None:
    assert expanded(text) == values.split()


@pytest.mark.parametrize(
    "text",
    [
        *("log(1,2)", "log(0,1,3)", "log(-1,1,3)", "lin(0,1,2.5)", "lin(0,1,0)", "lin(a,1,2)"),
        *("range(0,10,0)", "range(0,10,-1)", "range(0,1,1e-9)", "lin(0,inf,3)", "lin(,,)"),
    ],
)
def test_invalid_ranges_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        expanded(text)


@pytest.mark.parametrize(
    ("text", "prefix", "values"),
    [
        ("tag:LearningRate=1e-3,3e-3", "tag:LearningRate=", ["1e-3", "3e-3"]),
        ("tag:Seed=1,log(1e-4,1e-2,2),lin(5,6,2)", "tag:Seed=", ["1", "0.0001", "0.01", "5", "6"]),
        ("set:num_steps*=2,3", "set:num_steps*=", ["2", "3"]),
        ("set:betas=(0.9,0.95),(0.9,0.99)", "set:betas=", ["(0.9,0.95)", "(0.9,0.99)"]),
        (
            "fiddler:use_gqa(1),use_gqa(n=2),use_gelu",
            "fiddler:",
            "use_gqa(1) use_gqa(n=2) use_gelu",
        ),
        ("use:norm=RMSNorm(eps=1),RMSNorm(eps=2)", "use:norm=", "RMSNorm(eps=1) RMSNorm(eps=2)"),
    ],
)
def test_the_values_of_an_axis(text: str, prefix: str, values: str | list[str]) -> None:
    values = values.split() if isinstance(values, str) else values
    assert axis_values(text) == [prefix + value for value in values]


@pytest.mark.parametrize(
    ("make", "text", "message"),
    [
        *((axis, text, "lacks a kind of directive") for text in ("", "tag", "a=1,2")),
        (axis, "yaml:a.yaml,b.yaml", "lacks a kind of directive that has values"),
        *((axis, text, "has no values") for text in ("tag:LearningRate", "tag:X=", "fiddler:")),
        (axis, "set:a=1,,2", ","),
        (
            pairs,
            "set:a=1,2,3;tag:B=1,2",
            "axes of one length, and these differ:\n  3 values: set:a=1,2,3\n  2 values: tag:B=1,2",
        ),
        (pairs, "set:a=1,2", "pairs nothing: put a ; between two axes, and quote them"),
        *(
            (repeat, text, "--repeat=seed:3")
            for text in ("seed", "seed:", "seed:0", "seed:x", ":3")
        ),
        *((ablation, text, "--ablate") for text in ("", " ")),
        (ablation, "fiddler:use_gelu,set:seed=1", "set:seed=1 is no value, .* put a ; before it"),
        (axis, "set:seq_len=1,set:seed=1", "set:seed=1 is no value, .* give it a flag of its own"),
    ],
)
def test_invalid_axes_are_refused(make: Callable[[str], Axis], text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(text)


def test_pairs_change_together_and_repetitions_begin_with_the_config() -> None:
    made = pairs("set:model.hidden_dim=64,128;use:model.norm=RMSNorm(eps=1e-3),RMSNorm(eps=1e-4)")
    assert [choice.directives for choice in made.choices] == [
        ("set:model.hidden_dim=64", "use:model.norm=RMSNorm(eps=1e-3)"),
        ("set:model.hidden_dim=128", "use:model.norm=RMSNorm(eps=1e-4)"),
    ]
    seeds = [choice.directives for choice in repeat("seed:3").choices]
    assert seeds == [("set:seed+=0",), ("set:seed+=1",), ("set:seed+=2",)]
    assert repeat("tag:Seed:1").choices[0].directives == ("tag:Seed+=0",)


def test_an_ablation_is_all_and_all_but_one() -> None:
    made = ablation("fiddler:use_gelu,use_gqa(1);tag:WeightDecay=0")
    gelu, gqa, decay = "fiddler:use_gelu", "fiddler:use_gqa(1)", "tag:WeightDecay=0"
    assert [(choice.label, choice.directives) for choice in made.choices] == [
        ("all", (gelu, gqa, decay)),
        ("without use_gelu", (gqa, decay)),
        ("without use_gqa(1)", (gelu, decay)),
        ("without WeightDecay=0", (gelu, gqa)),
    ]
