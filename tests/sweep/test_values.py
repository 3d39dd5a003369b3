"""Values of axes: lists, ranges of three kinds, pairs, repetitions and what is left out."""

import pytest

from fidgpt.graph import ConfigError
from fidgpt.sweep import ablation, axis, axis_values, pairs, repeat
from fidgpt.sweep.axes import expanded


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("3e-4", ["3e-4"]),
        ("log(1e-4,1e-2,3)", ["0.0001", "0.001", "0.01"]),
        ("log(1e-4, 1e-2, 5)", ["0.0001", "0.0003162", "0.001", "0.003162", "0.01"]),
        ("log(1024,65536,7)", ["1024", "2048", "4096", "8192", "16384", "32768", "65536"]),
        ("log(1e-2,1e-4,2)", ["0.01", "0.0001"]),
        ("lin(0,0.3,4)", ["0", "0.1", "0.2", "0.3"]),
        ("lin(0,1,4)", ["0", "0.333333", "0.666667", "1"]),
        ("lin(5,9,1)", ["5"]),
        ("range(0,10,4)", ["0", "4", "8"]),
        ("range(0,8,4)", ["0", "4"]),
        ("range(2,5)", ["2", "3", "4"]),
        ("range(0,0.5,0.1)", ["0", "0.1", "0.2", "0.3", "0.4"]),
        ("range(3,0,-1)", ["3", "2", "1"]),
        ("range(2**6,2**8,2**6)", ["64", "128", "192"]),
        ("[lin(0,1,2)]", ["[lin(0,1,2)]"]),
    ],
)
def test_what_a_value_stands_for(text: str, values: list[str]) -> None:
    assert expanded(text) == values


@pytest.mark.parametrize(
    "text",
    [
        *("log(1,2)", "log(0,1,3)", "log(-1,1,3)", "lin(0,1,2.5)", "lin(0,1,0)", "lin(a,1,2)"),
        *("range(0,10,0)", "range(0,10,-1)", "range(0,1,1e-9)", "lin(0,inf,3)", "lin(,,)"),
        *("lin(0,1,1e9)", "range(2**x,3,1)"),
    ],
)
def test_numbers_that_make_no_values(text: str) -> None:
    with pytest.raises(ConfigError):
        expanded(text)


def test_values_and_ranges_stand_in_one_list() -> None:
    assert axis_values("tag:LearningRate=1,log(1e-4,1e-2,3),lin(5,6,2)") == [
        f"tag:LearningRate={value}" for value in ("1", "0.0001", "0.001", "0.01", "5", "6")
    ]


def test_what_is_called_like_a_range_may_be_a_part() -> None:
    assert axis_values("use:model.norm=log(a=1,b=2)") == ["use:model.norm=log(a=1,b=2)"]


def test_values_may_be_given_from_python() -> None:
    assert axis("tag:LearningRate", [1e-3, 3e-3]) == axis("tag:LearningRate=0.001,0.003")
    assert axis("fiddler", ["use_gelu", "use_gqa(1)"]) == axis("fiddler:use_gelu,use_gqa(1)")


def test_pairs_go_together() -> None:
    made = pairs("set:model.hidden_dim=64,128;use:model.norm=RMSNorm(eps=1e-3),RMSNorm(eps=1e-4)")
    assert [choice.directives for choice in made.choices] == [
        ("set:model.hidden_dim=64", "use:model.norm=RMSNorm(eps=1e-3)"),
        ("set:model.hidden_dim=128", "use:model.norm=RMSNorm(eps=1e-4)"),
    ]


def test_pairs_of_two_lengths_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        pairs("set:seq_len=1,2,3;tag:LearningRate=1,2")
    assert str(caught.value) == (
        "--zip pairs axes of one length, and these differ:\n"
        "  3 values: set:seq_len=1,2,3\n"
        "  2 values: tag:LearningRate=1,2"
    )
    with pytest.raises(ConfigError, match="pairs nothing"):
        pairs("set:seq_len=1,2,3")


def test_a_repetition_begins_with_the_seed_of_the_config() -> None:
    assert [choice.directives for choice in repeat("seed:3").choices] == [
        ("set:seed+=0",),
        ("set:seed+=1",),
        ("set:seed+=2",),
    ]
    assert repeat("tag:Seed:1").choices[0].directives == ("tag:Seed+=0",)


@pytest.mark.parametrize("text", ["seed", "seed:", "seed:0", "seed:x", ":3"])
def test_a_repetition_without_a_count(text: str) -> None:
    with pytest.raises(ConfigError, match="--repeat=seed:3"):
        repeat(text)


def test_an_ablation_is_all_and_all_but_one() -> None:
    made = ablation("fiddler:use_gelu,use_gqa(1);tag:WeightDecay=0")
    gelu, gqa, decay = "fiddler:use_gelu", "fiddler:use_gqa(1)", "tag:WeightDecay=0"
    assert [(choice.label, choice.directives) for choice in made.choices] == [
        ("all", (gelu, gqa, decay)),
        ("without use_gelu", (gqa, decay)),
        ("without use_gqa(1)", (gelu, decay)),
        ("without WeightDecay=0", (gelu, gqa)),
    ]
    with pytest.raises(ConfigError, match="twice"):
        ablation("fiddler:use_gelu,use_gelu")


@pytest.mark.parametrize("text", ["", " ", ";"])
def test_an_ablation_leaves_something_out(text: str) -> None:
    with pytest.raises(ConfigError):
        ablation(text)
