"""What directives came to is told: what changed, what was in vain, and what was overruled."""

import pytest

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.compose.errors import directive_error
from fidgpt.compose.report import Report, report
from fidgpt.graph import ConfigErrors

OWN = own_catalogue()


def told(*directives: str, verbose: bool = False, allow_noop: bool = False) -> Report:
    return report(compose(directives, OWN), verbose=verbose, allow_noop=allow_noop)


def test_every_directive_tells_how_much_it_changed() -> None:
    assert told("config:debug", "fiddler:make_large", "tag:LearningRate=1e-5") == Report(
        changes=[
            "fiddler:make_large: 2 values, 2 inherited by 7 parameters",
            "tag:LearningRate=1e-5: 1 value",
        ],
        warnings=[],
    )


def test_a_base_alone_tells_nothing() -> None:
    assert told("config:debug") == told() == ([], [])


def test_in_full_on_request() -> None:
    assert told("set:seed=3", "use:model.norm=LayerNorm", verbose=True).changes == [
        "set:seed=3: 1 value, inherited by 1 parameter",
        "  seed: 0 -> 3",
        "use:model.norm=LayerNorm: 1 value",
        "  model.norm: RMSNorm(...) -> LayerNorm(...)",
    ]


def test_a_value_that_is_so_already_is_a_warning() -> None:
    assert told("set:seed=0") == ([], ["set:seed=0 changes nothing: it is so already."])


def test_a_change_that_changes_nothing_is_a_mistake_unless_a_script_asks() -> None:
    with pytest.raises(ConfigErrors) as caught:
        told("fiddler:tie_embeddings", "fiddler:use_rope")
    assert [message.splitlines()[0] for message in caught.value.messages] == [
        "fiddler:tie_embeddings (directive 1) changes nothing: the config is so already.",
        "fiddler:use_rope (directive 2) changes nothing: the config is so already.",
    ]
    (line,) = told("fiddler:tie_embeddings", allow_noop=True).warnings
    assert line.startswith("fiddler:tie_embeddings changes nothing")


def test_a_part_in_place_of_the_same_changes_nothing() -> None:
    with pytest.raises(ConfigErrors) as caught:
        told("use:model.norm=RMSNorm", "use:optimizer=adamw(lr=0.001)")
    assert [message.splitlines()[0] for message in caught.value.messages] == [
        "use:model.norm=RMSNorm (directive 1) changes nothing: the config is so already.",
        "use:optimizer=adamw(lr=0.001) (directive 2) changes nothing: the config is so already.",
    ]
    formula = "set:schedule.warmup_steps={num_steps} // 5"
    assert told(formula, formula) == (
        [f"{formula}: 1 value"],
        [f"{formula} changes nothing: it is so already."],
    )


def test_what_is_overruled_is_named() -> None:
    (warning,) = told("set:model.hidden_dim=128", "fiddler:make_large").warnings
    assert warning == (
        "fiddler:make_large (directive 2) overrules model.hidden_dim as set by "
        "set:model.hidden_dim=128 (directive 1)."
    )


@pytest.mark.parametrize(
    ("directive", "message", "carets"),
    [
        ("set:a.bb=1", "a has no parameter 'bb'.", "               ^^"),
        ("set:a=bb", "a: 'bb' is not an int.", "               ^^"),
        ("set:a=1", "something else.", "             ^^^"),
        ("set:a.long=1", "a.long is 5, so there is nothing.", "             ^^^^^^"),
        ("fiddler:f(n=2000)", "n=2000 is too much: use 200.", " " * 19 + "^^^^^^"),
        ("set:a={b: CD}", "a['b']: 'CD' is not a C.", "                   ^^"),
        ("use:a.long=part", "a.long takes C, not the part part.", "                    ^^^^"),
        ("set:a={b} // {c}", "a: {b} // {c}: it divides by zero.", "               ^^^^^^^^^^"),
        ("set:a={bb} * 2", "a is {bb} * 2: there is no 'bb'.", "                ^^"),
        ("set:a=f('bb')", "a: f('bb'): it is no number.", "               ^^^^^^^"),
        ("nonsense", "there is no directive 'nonsense'.", "         ^^^^^^^^"),
        ("", "there is no directive ''.", "         ^"),
    ],
)
def test_the_wrong_piece_is_underlined(directive: str, message: str, carets: str) -> None:
    assert directive_error(7, directive, message).splitlines() == [
        "directive 7 is wrong:",
        f"  --config={directive}",
        f"  {carets}",
        f"  {message}",
    ]


def test_a_directive_of_many_lines_or_letters_stays_readable() -> None:
    lines = directive_error(1, "config_str:{\n" + "x" * 500, "it is not JSON.").splitlines()
    assert lines[1] == "  --config=config_str:{ ..."
    long = directive_error(1, "set:a=" + "x" * 500, "no.").splitlines()
    assert all(len(line) < 120 for line in long)


def test_a_space_before_the_kind_means_nothing() -> None:
    assert told(" config:debug", " set:seed=0").warnings == [
        " set:seed=0 changes nothing: it is so already."
    ]


def test_what_a_machine_does_not_need_is_no_mistake() -> None:
    (line,) = told("config:debug", "fiddler:for_hardware(machine=toaster)").warnings
    assert line.endswith("changes nothing: it is so already.")
