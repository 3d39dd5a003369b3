"""A mistake of the whole graph is told of the directives that made it, and all is told at once."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from fidgpt.cli import train
from fidgpt.cli.catalogue.catalogue import own_catalogue
from fidgpt.cli.directives.culprits import Culprits, grouped
from fidgpt.cli.directives.directives import composed
from fidgpt.graph import ConfigError, checked

OWN = own_catalogue()
HEADS = "model.blocks[0].attention (Attention): hidden_dim=30 is not a whole number of heads of "


def told(*directives: str) -> list[str]:
    root = composed(["config:debug", *directives], OWN).root
    with pytest.raises(ConfigError) as caught:
        checked(root)
    return Culprits(root).told(caught.value)


def behind(message: str, *directives: str) -> list[int]:
    return [*Culprits(composed(["config:debug", *directives], OWN).root).behind(message)]


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
    (message,) = told("set:num_steps=0")
    assert message.count("directive 2 is wrong") == 1
    assert "the root (Trainer): num_steps=0" in message and "schedule (Warmup" in message


def test_several_do_not_go_together() -> None:
    (message,) = told("set:schedule.warmup_steps=5", "set:seed=3", "tag:NumSteps=3")
    assert [line for line in message.splitlines() if "^" not in line] == [
        "directives 2 and 4 do not go together:",
        "  --config=set:schedule.warmup_steps=5",
        "  --config=tag:NumSteps=3",
        "  schedule (WarmupCosine): warmup_steps=5 does not fit into num_steps=3: "
        "shorten it, or train for longer.",
    ]


@pytest.mark.parametrize(
    ("numbers", "message", "directives"),
    [
        ([2], f"{HEADS}head_dim=16.", ["tag:HiddenDim=30", "set:seed=3"]),
        ([3], f"{HEADS}head_dim=16.", ["set:model.hidden_dim=64", "set:model.hidden_dim=30"]),
        ([2], "top_k=3 is more than model.norm has.", ["use:model.norm=LayerNorm"]),
        ([2], "schedule.decay_steps is required.", ["use:schedule=WarmupStableDecay"]),
        ([2], "seed is required by Trainer and not set.", ["del:seed"]),
        ([2], "batch_size=7 cannot be dealt out to world_size=2.", ["set:batch_size=7"]),
        ([2], "trackers[0] is wrong.", ["set:trackers=[JSONLines]"]),
        ([2, 3], "model.norm.hidden_dim hears two values:\n  3, said by model.hidden_dim\n"
         "  5, said by model.dropout", ["set:model.hidden_dim=3", "set:model.dropout=0.5"]),
        ([2], "seed is {num_stps}: no 'hidden_dim'. It exists at model.hidden_dim.",
         ["set:seed={num_steps}", "set:model.hidden_dim=3"]),
        ([2], "the config: seed: no file says this.", ["set:seed=4"]),
        ([], f"{HEADS}head_dim=16.", ["set:seed=3"]),
        ([], "the model cannot be read.", ["set:model.hidden_dim=3"]),
    ],
)  # fmt: skip
def test_who_is_behind_a_message(numbers: list[int], message: str, directives: list[str]) -> None:
    assert behind(message, *directives) == numbers


def test_one_message_for_all_items_of_a_list() -> None:
    message = "a.b[{}].c (C): d=3 is odd."
    assert grouped([message.format(i) for i in range(4)] + ["e is f."]) == [
        "a.b[0].c (C): d=3 is odd.\nThe same at a.b[1].c, a.b[2].c and 1 more.",
        "e is f.",
    ]


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

    def test_what_cannot_be_saved_has_a_directive_too(self, command: Callable[..., Any]) -> None:
        use = "use:model.norm=cli.test_culprits.Norm(normalized_shape=32)"
        err = self.wrong(command, use, flag="--dry_run")
        assert f"directive 2 is wrong:\n  --config={use}\n" in err
        assert "--allow=cli" in err


class Norm(nn.LayerNorm):
    """A norm of somebody's own, in a package that is not allowed."""
