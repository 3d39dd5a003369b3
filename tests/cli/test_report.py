"""What is reported of directives: changes, no-ops, overridden values, and the errors they cause."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import train
from fidgpt.compose import report
from fidgpt.compose.composition import Composition, compose
from fidgpt.compose.report import messages_of
from fidgpt.graph import ConfigError, ConfigErrors, check_and_bind, diff, dump_patch
from fidgpt.runs.ineffective import without_effect

HEADS = "model.blocks[0].attention (Attention): hidden_dim=30 must be a multiple of "
WIDTH = "model.blocks[0].attention.hidden_dim"  # which inherits it


def debug(*directives: str) -> Composition:
    return compose(["config:debug", *directives])


def errors_of(*directives: str) -> list[str]:
    made = debug(*directives)
    with pytest.raises(ConfigError) as caught:
        check_and_bind(made.config)
    return messages_of(made, caught.value)


def test_every_directive_shows_how_much_it_changed() -> None:
    done = report.report(debug(" fiddler:make_large", "tag:LearningRate=1e-5", " set:seed=0"))
    assert done == report.Report(
        changes=[
            " fiddler:make_large: 2 values, inherited by 7 parameters",
            "tag:LearningRate=1e-5: 1 value",
        ],
        warnings=[" set:seed=0 changes nothing: the config already has it."],
    )
    assert report.report(debug()) == report.report(compose()) == ([], [])
    done = report.report(compose(["set:seed=3", "use:model.norm=LayerNorm"]), verbose=True)
    assert done.changes == [
        "set:seed=3: 1 value, inherited by 1 parameter",
        "  seed: 0 -> 3",
        "use:model.norm=LayerNorm: 1 value",
        "  model.norm: RMSNorm -> LayerNorm",
    ]


def test_a_no_op_is_an_error_where_something_was_meant_and_a_warning_elsewhere() -> None:
    directives = ["fiddler:use_rope", "use:model.norm=RMSNorm", "use:optimizer=adamw(lr=0.001)"]
    with pytest.raises(ConfigErrors) as caught:
        report.report(compose(directives))
    assert [message.splitlines()[0] for message in caught.value.messages] == [
        f"{one} (directive {number}) changes nothing: the config already has it."
        for number, one in enumerate(directives, start=1)
    ]
    idle = [f"{one} changes nothing: the config already has it." for one in directives]
    assert report.report(compose(directives), allow_noop=True).warnings == idle
    formula = "set:schedule.warmup_steps={num_steps} // 5"
    (line,) = report.report(compose([formula, formula])).warnings
    assert line == f"{formula} changes nothing: the config already has it."
    (line,) = report.report(debug("fiddler:for_hardware(machine=toaster)")).warnings
    assert line.endswith("changes nothing: the config already has it.")


class TestOverruled:
    @pytest.mark.parametrize(
        ("path", "directives"),
        [
            ("seed", ["set:seed=3", "fiddler:use_gelu", "set:seed=4"]),
            ("schedule.warmup_steps", ["set:schedule.warmup_steps=7", "tag:WarmupSteps=9"]),
            ("model.hidden_dim", ["fiddler:make_large", "set:model.hidden_dim=128"]),
            ("model.norm", ["use:model.norm=LayerNorm", "use:model.norm=RMSNorm(eps=1e-3)"]),
        ],
    )
    def test_a_value_that_is_gone(self, path: str, directives: list[str]) -> None:
        (line,) = report.overridden(debug(*directives))
        number = len(directives) + 1
        assert line == (
            f"{directives[-1]} (directive {number}) overrides {path} as set by {directives[0]} "
            "(directive 2)."
        )

    @pytest.mark.parametrize(
        "directives",
        [
            # The fiddler keeps, under another name, what the config had set.
            ["fiddler:use_linear", "tag:WarmupSteps=7"],
            # The later one changes what the earlier one set.
            ["set:seed=3", "set:seed*=2"],
            ["tag:LearningRate=2e-3", "fiddler:scale_learning_rate(0.5)"],
            # First a whole is set, then a piece of it.
            ["use:model.norm=LayerNorm", "set:model.norm.eps=1e-3"],
            ["fiddler:unroll", "set:model.blocks[1].attention.num_kv_heads=1"],
            # What the earlier one put there is for the later one to change.
            ["fiddler:use_fsdp", "fiddler:use_sequence_parallel"],
            # What it holds is kept, under another name or in another place.
            ["set:model.blocks[0].mlp.ffn_dim=64", "fiddler:use_moe"],
            ["set:optimizer.betas=(0.9, 0.99)", "fiddler:use_muon"],
        ],
    )
    def test_a_value_that_has_an_effect(self, directives: list[str]) -> None:
        assert not [*report.overridden(debug(*directives))]

    def test_items_of_a_list_that_are_gone(self) -> None:
        [*lines] = report.overridden(debug("fiddler:use_alibi", "fiddler:use_no_positions"))
        assert lines
        for line in lines:
            assert ".scores[0] as set by fiddler:use_alibi (directive 2)." in line

    def test_each_of_three_overrides_the_one_before(self, tmp_path: Path) -> None:
        lines = report.overridden(debug("set:seed=3", "set:seed=4", "set:seed=5"))
        assert [line.partition(" overrides")[0] for line in lines] == [
            "set:seed=4 (directive 3)",
            "set:seed=5 (directive 4)",
        ]
        file = tmp_path / "seed.patch"  # which contains the value that it replaces
        file.write_text(dump_patch((debug("set:seed=3").config, debug("set:seed=4").config)))
        assert not [*report.overridden(debug("set:seed=3", f"patch:{file}"))]


class TestOutdated:
    @pytest.mark.parametrize(
        ("first", "path", "later"),
        [
            ("unroll", "model.num_layers", "set:model.num_layers=4"),
            ("train_for(tokens_per_parameter=20)", "model.hidden_dim", "tag:HiddenDim=64"),
            ("use_mup", "model.embedding.weight.init.std", "set:**.weight.init.std=0.3"),
        ],
    )
    def test_code_that_used_a_value_which_changes_later(
        self, first: str, path: str, later: str
    ) -> None:
        made = debug(f"fiddler:{first}", later)
        with pytest.raises(ConfigErrors) as caught:
            report.report(made)
        (message,) = caught.value.messages
        assert message.startswith("directives 2 and 3 conflict:")
        assert message.endswith(
            f"fiddler:{first} depends on {path}, which {later} changes later. "
            f"Put fiddler:{first} after it."
        )
        report.report(debug(later, f"fiddler:{first}"))
        with pytest.raises(ConfigErrors, match="conflict"), report.naming_directives(made):
            raise ConfigError("another")

    @pytest.mark.parametrize(
        "directives",
        [
            ["fiddler:unroll", "set:model.blocks[0].dropout=0.1", "set:seed=3"],
            ["fiddler:unroll(every=2)", "set:model.num_layers=8"],
            ["fiddler:train_for", "set:batch_size=32", "fiddler:grow_batch"],
            ["fiddler:use_mup", "tag:InitStd=0.3"],
        ],
    )
    def test_code_that_did_not(self, directives: list[str]) -> None:
        assert not [*report.outdated(debug(*directives))]


INIT = "model.unembedding.weight.init"


@pytest.mark.parametrize("write", [f"set:{INIT}.std=0.3", f"set:{INIT}.std*=2", f"del:{INIT}.std"])
def test_a_change_counts_and_names_all_the_places_that_it_reaches(write: str) -> None:
    made = debug("untie:model.unembedding.weight", write)
    done = report.report(made)
    assert done.changes == [
        "untie:model.unembedding.weight: 1 value",
        f"{write}: 1 value in 5 places",
    ]
    assert done.warnings == [
        f"{write} (directive 3) also changes model.embedding.weight.init.std, "
        "model.blocks[0].attention.init.std and 2 more: 5 places share one component. "
        f"untie:{INIT} before it gives this one its own."
    ]
    (line,) = [str(one) for one in diff(debug(*made.directives[1:2]).config, made.config)] or [""]
    assert write.startswith("del:") == (line == "")  # the default, which it was before
    assert not line or re.search(r"init.std: 0.02 -> 0.\d+, shared by 5 places$", line)
    why = made.why(f"{INIT}.std")
    assert "shared with model.embedding.weight.init.std, model.blocks[0].attention.init" in why
    done = report.report(debug("untie:model.unembedding.weight", f"untie:{INIT}", write))
    assert done.warnings == [] and done.changes[1:] == [
        f"untie:{INIT}: 1 value",
        f"{write}: 1 value",
    ]


def test_errors_of_the_same_directives_are_one_message() -> None:
    (message,) = errors_of("set:seq_len=0")
    assert message.count("directive 2 is wrong") == 1
    assert "  data (" in message and "validation'].data (" in message
    (message,) = errors_of("set:schedule.warmup_steps=5", "set:seed=3", "tag:NumSteps=3")
    assert message.startswith("directives 2 and 4 conflict:")
    ffn_dim = "set:model.blocks[0].mlp.ffn_dim={HiddenDim} / 7"
    (message,) = errors_of("set:model.hidden_dim=64", ffn_dim)
    assert message.startswith("directives 2 and 3 conflict:")
    wide = [f"set:model.blocks[{i}].attention.hidden_dim=30" for i in range(2)]
    messages = errors_of("fiddler:unroll", *wide)  # of two directives, so not as one
    assert [one.split()[1] for one in messages] == ["3", "4"]


@pytest.mark.parametrize("flag", ["--dry_run", "--print"])
@pytest.mark.parametrize(
    ("directives", "parts"),
    [
        (["set:model.hidden_dim=30", "use:model.norm=RMSNorm", "set:num_step=3"],
         ["directive 4 is wrong", "no parameter 'num_step'", "directive 2 is wrong", HEADS,
          "use:model.norm=RMSNorm (directive 3) changes nothing"]),
    ],
)  # fmt: skip
def test_all_errors_are_reported_at_once(
    command: Callable[..., Any], directives: list[str], parts: list[str], flag: str
) -> None:
    flags = [f"--config={one}" for one in ("config:debug", *directives)]
    status, out, err = command(train.main, *flags, flag)
    assert (status, out) == (2, "")
    assert [part for part in parts if part not in err] == []


def test_a_graph_of_a_users_own_parts_is_shown(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import fiddle as fdl
from fiddle.experimental import auto_config

class LearningRate(fdl.Tag):
    'As one of fidgpt is called.'

class Net:
    def __init__(self, dim: int = 8): ...

class Loop:
    def __init__(self, net: Net, lr: float = 0.1): ...

def mine() -> fdl.Config[Loop]:
    return fdl.Config(Loop, net=fdl.Config(Net, dim=16), lr=LearningRate.new(0.1))

@auto_config.auto_config
def decorated(dim: int = 4) -> Loop:
    return Loop(net=Net(dim=dim))
"""
    (tmp_path / "plainfiddle.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    flags = ("--config=config:plainfiddle.mine", "--config=set:net.dim*=2", "--print=flat")
    status, out, err = command(train.main, *flags, "--diff=plainfiddle.mine")
    assert (status, err) == (0, "")
    assert "net.dim = 32\n" in out and out.endswith("~ net.dim: 16 -> 32\n")
    decorated = "--config=config:plainfiddle.decorated(dim=5)"
    assert "\nnet.dim = 5\n" in command(train.main, decorated, "--print=flat")[1]
    status, _, err = command(train.main, decorated.replace("5", "wide"), "--print")
    assert status == 2 and "dim: 'wide' is not an int." in err
    tag = "--config=tag:LearningRate=0.2"
    assert "\nlr = 0.2\n" in command(train.main, flags[0], tag, "--print=flat")[1]
    status, _, err = command(train.main, flags[0], "--allow=plainfiddle", "--dry_run")
    assert status == 2 and "builds Loop, and what runs is a Trainer. In a script of your" in err


@pytest.mark.parametrize(
    ("directives", "sentence"),
    [
        (["set:model.blocks[0].attention.window=64"], "a window of 64 tokens sees all of"),
        (["fiddler:set_warmup(warmup=10)"], "a warm-up of 10 steps takes the whole run"),
        (["fiddler:use_ulysses"], "use_ulysses divides no sequence"),
        (["fiddler:use_sequence_parallel"], "use_sequence_parallel divides no stream"),
        (["fiddler:use_chunked_sums"], "use_chunked_sums has no sums to send"),
        (["fiddler:use_zero2"], "use_zero2 has no sharded weights to gather"),
        (["fiddler:use_zero2", "fiddler:use_fsdp"], ""),
        (["fiddler:use_chunked_sums", "fiddler:use_mesh(tensor=2)"], ""),
        (["fiddler:use_mesh(tensor=2)", "fiddler:use_sequence_parallel"], ""),
        (
            ["fiddler:use_schedule_free", "fiddler:use_ema", "fiddler:use_constant"],
            "schedule-free AdamW averages weights",
        ),
        (["fiddler:use_schedule_free"], "schedule-free AdamW takes the place of a decaying rate"),
        (["fiddler:use_schedule_free", "fiddler:use_constant"], ""),
        (["set:model.blocks[0].attention.mask=Chunk(64)"], "a window of 64 tokens sees all of"),
        (["fiddler:use_profiler(begin=11)"], "observers[0] begins at step 11, after the end"),
        (
            ["fiddler:use_constant", "set:schedule.min_lr_ratio=0.3"],
            "set:schedule.min_lr_ratio=0.3",
        ),
        (["fiddler:use_linear", "set:schedule.rewarmup=2"], "set:schedule.rewarmup=2"),
        (["fiddler:use_cycles", "set:schedule.rewarmup=2", "set:schedule.min_lr_ratio=0.3"], ""),
        (["fiddler:use_mtp(num_tokens=31)"], "num_predictions=31 is beyond sequences"),
        (["fiddler:use_ulysses", "fiddler:use_mesh(context=2)"], ""),
        (["set:model.blocks[0].attention.window=32", "fiddler:set_warmup(warmup=9)"], ""),
    ],
)
def test_what_a_run_of_this_length_makes_no_use_of_is_said(
    directives: list[str], sentence: str
) -> None:
    sentences = without_effect(debug(*directives))
    assert len(sentences) == bool(sentence) and "".join(sentences).startswith(sentence)


@pytest.mark.parametrize("first", [[], ["fiddler:share_blocks"]])
def test_a_tie_of_factories_shares_settings_unless_blocks_are_shared(first: list[str]) -> None:
    tie = "tie:model.blocks[1]=model.blocks[0]"
    warnings = "".join(report.report(debug(*first, "fiddler:unroll", tie)).warnings)
    assert ("shares settings, not weights" in warnings) == (not first)
