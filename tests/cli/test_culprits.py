"""A mistake of the whole graph is told of the directives that made it, and all is told at once."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from fidgpt.cli import train
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import Composition, compose
from fidgpt.compose.errors import Attribution, grouped
from fidgpt.graph import ConfigError, ConfigErrors, check_and_bind

OWN = own_catalogue()
HEADS = "model.blocks[0].attention (Attention): hidden_dim=30 is not a whole number of heads of "


def told(*directives: str) -> list[str]:
    made = compose(["config:debug", *directives], OWN)
    with pytest.raises(ConfigError) as caught:
        check_and_bind(made.config)
    return attribution(made).messages(caught.value)


def behind(sources: list[str], *directives: str) -> list[int]:
    made = compose(["config:debug", *directives], OWN)
    error = ConfigError("it is wrong.", sources=sources)
    return [*attribution(made).directives_behind(error)]


def attribution(made: Composition) -> Attribution:
    return Attribution(made.config, lambda: made.resolved)


def test_one_directive_is_shown_with_the_piece_that_is_wrong() -> None:
    (message,) = told("set:model.hidden_dim=30")
    lines = message.splitlines()
    assert lines[:3] == [
        "directive 2 is wrong:",
        "  --config=set:model.hidden_dim=30",
        "                     ^^^^^^^^^^^^^",
    ]
    assert lines[3].startswith(f"  {HEADS}head_dim=16;")


def test_all_that_one_directive_made_is_told_of_it_once() -> None:
    (message,) = told("set:seq_len=0")
    assert message.count("directive 2 is wrong") == 1
    assert "  data (" in message and "validation'].data (" in message


def test_several_do_not_go_together() -> None:
    (message,) = told("set:schedule.warmup_steps=5", "set:seed=3", "tag:NumSteps=3")
    assert [line for line in message.splitlines() if "^" not in line] == [
        "directives 2 and 4 do not go together:",
        "  --config=set:schedule.warmup_steps=5",
        "  --config=tag:NumSteps=3",
        "  schedule (WarmupCosine): warmup_steps=5 does not fit into num_steps=3: "
        "shorten it, or train for longer.",
    ]


WIDTH = "model.blocks[0].attention.hidden_dim"  # which hears it


@pytest.mark.parametrize(
    ("numbers", "sources", "directives"),
    [
        ([2], [WIDTH], ["tag:HiddenDim=30", "set:seed=3"]),
        ([3], [WIDTH], ["set:model.hidden_dim=64", "set:model.hidden_dim=30"]),
        ([2], ["model.norm"], ["use:model.norm=LayerNorm"]),
        ([2], ["model.norm.eps"], ["use:model.norm=LayerNorm"]),  # said by what holds it
        ([2], ["model.norm.epps"], ["use:model.norm=LayerNorm"]),  # and holds no such thing
        ([2], [f"{WIDTH}.of"], ["set:model.hidden_dim=30"]),  # which is there when it is bound
        ([2], ["seed"], ["del:seed"]),
        ([2], ["trackers[0]"], ["set:trackers=[JSONLines]"]),
        ([2, 3], ["model.hidden_dim", "model.dropout"],
         ["set:model.hidden_dim=3", "set:model.dropout=0.5"]),
        ([2], ["seed", "num_stps", "{"], ["set:seed={num_steps}", "set:model.hidden_dim=3"]),
        ([], [WIDTH], ["set:seed=3"]),
        ([], [], ["set:model.hidden_dim=3"]),
    ],
)  # fmt: skip
def test_who_is_behind_a_mistake(
    numbers: list[int], sources: list[str], directives: list[str]
) -> None:
    assert behind(sources, *directives) == numbers


def test_a_quantity_that_a_formula_hears_is_behind_its_result() -> None:
    ffn_dim = "set:model.blocks[0].mlp.ffn_dim={HiddenDim} / 7"
    (message,) = told("set:model.hidden_dim=64", ffn_dim)
    assert message.startswith("directives 2 and 3 do not go together:")


def test_one_message_for_all_items_of_a_list() -> None:
    places = [f"a.b[{i}].c" for i in range(4)]
    mistakes = [ConfigError(f"{one} (C): d=3 is odd.", place=one) for one in places]
    assert grouped([*mistakes, ConfigError("e is f.", place="e")]) == [
        "a.b[0].c (C): d=3 is odd.\nThe same at a.b[1].c, a.b[2].c and 1 more.",
        "e is f.",
    ]


def test_what_different_directives_said_of_items_is_told_apart() -> None:
    said = [f"set:model.blocks[{i}].attention.hidden_dim=30" for i in range(2)]
    messages = told("fiddler:unroll", *said)
    assert [one.splitlines()[0] for one in messages] == [
        "directive 3 is wrong:",
        "directive 4 is wrong:",
    ]


def test_what_no_directive_said_stands_where_it_was_found() -> None:
    places = ["a[0]", "b", "a[1]", "seed"]
    error = ConfigErrors([ConfigError(f"{one} is odd.", place=one) for one in places])
    first, second, third = attribution(compose(["config:debug", "set:seed=3"], OWN)).messages(error)
    assert (first, second) == ("a[0] is odd.\nThe same at a[1].", "b is odd.")
    assert third.startswith("directive 2 is wrong:")


class TestAtOnce:
    """Whatever is wrong is told in one go, be it of a directive, of the graph, or in vain."""

    VAIN = "use:model.norm=RMSNorm (directive 3) changes nothing"

    def wrong(self, command: Callable[..., Any], *directives: str, flag: str) -> str:
        flags = [f"--config={one}" for one in ("config:debug", *directives)]
        status, out, err = command(train.main, *flags, flag)
        assert (status, out) == (2, "")
        return err

    @pytest.mark.parametrize("flag", ["--dry_run", "--print"])
    def test_beside_a_wrong_directive(self, command: Callable[..., Any], flag: str) -> None:
        said = ("set:model.hidden_dim=30", "use:model.norm=RMSNorm", "set:num_step=3")
        err = self.wrong(command, *said, flag=flag)
        assert "directive 4 is wrong" in err and "no parameter 'num_step'" in err
        assert "directive 2 is wrong" in err and HEADS in err
        assert self.VAIN in err

    def test_beside_a_wrong_graph(self, command: Callable[..., Any]) -> None:
        said = ("set:model.hidden_dim=30", "use:model.norm=RMSNorm")
        err = self.wrong(command, *said, flag="--dry_run")
        assert HEADS in err and self.VAIN in err

    def test_but_not_what_a_wrong_directive_was_to_mend(self, command: Callable[..., Any]) -> None:
        err = self.wrong(command, "set:seedd=3", "config:base", flag="--dry_run")
        assert "required" not in err

    def test_what_only_a_constructor_sees_has_a_directive_too(
        self, command: Callable[..., Any]
    ) -> None:
        err = self.wrong(command, "set:seed=3", "set:model.blocks=[]", flag="--dry_run")
        assert "directive 3 is wrong:\n  --config=set:model.blocks=[]\n" in err
        assert "model (Transformer): blocks=[] is empty" in err

    def test_what_cannot_be_saved_has_a_directive_too(self, command: Callable[..., Any]) -> None:
        use = "use:model.norm=cli.test_culprits.Norm(normalized_shape=32)"
        err = self.wrong(command, use, flag="--dry_run")
        assert f"directive 2 is wrong:\n  --config={use}\n" in err
        assert "--allow=cli" in err


class Norm(nn.LayerNorm):
    """A norm of somebody's own, in a package that is not allowed."""
