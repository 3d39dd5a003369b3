"""What --list and --help print."""

import re
from pathlib import Path

import pytest

from fidgpt import configs, fiddlers
from fidgpt.cli import sample, sweep, train

from .conftest import Command

pytestmark = pytest.mark.usefixtures("index_for")


def rows(text: str) -> list[list[str]]:
    """The cells of each row of a plain table."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line[:2] == "  "]


def shown(text: str) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in rows(text)}


@pytest.mark.slow
def test_lists(command: Command) -> None:
    status, out, err = command(train.main, "--list=configs")
    assert (status, err) == (0, "")
    assert out.startswith("Configs\n") and "3.5 million parameters" in out
    more = ["chat(base=..., learning_rate=None)", "from_hf(directory=...)"]
    listed = [*configs.__all__, *more]
    names = [row[0].partition("(")[0] for row in rows(out)]
    assert names == [f"config:{name}".partition("(")[0] for name in listed]
    assert command(sweep.main, "--list=configs").out == out
    found = shown(command(train.main, "--list=fiddlers").out)
    assert len(found) == len(fiddlers.__all__) + 1  # use_distillation, which takes a graph
    assert found["fiddler:use_gqa(num_kv_heads=2)"][0].startswith("Use grouped-query attention")
    out = command(train.main, "--list=tags", "--config=config:gpt2_124m").out
    assert out.startswith("Tags, as config:gpt2_124m sets them\n")
    path, inherited, doc = shown(out)["tag:HiddenDim"]
    assert path == "model.hidden_dim=768" and re.fullmatch(r"inherited by \d+", inherited)
    assert doc == "Width of the residual stream, in elements."


def test_parts_and_knobs_at_a_path(command: Command) -> None:
    out = command(train.main, "--list=parts:schedule").out
    assert out.startswith("Parts that fit schedule (Schedule), which is WarmupCosine\n")
    phased = ["Phases", "Rise", "WarmupCosine", "WarmupStableDecay"]
    assert [*shown(out)] == [*phased, "optim.Constant"]
    assert "none of fidgpt's own" in command(train.main, "--list=parts:samples.prompts").out
    names = shown(command(train.main, "--list=parts").out).keys()
    assert {"Attention", "adamw", "TokenStream", "DataParallel", "RouterZLoss"} <= names
    assert not {"DataError", "Tracker"} & names
    out = command(train.main, "--list=knobs:model.norm").out
    assert rows(out) == [
        ["model.norm", "Norm", "RMSNorm", "normalizes the stream after the last block."],
        ["model.norm.hidden_dim", "int", "256 <- model.hidden_dim", "width of the input."],
        ["model.norm.eps", "float", "1e-05", "added to the mean of squares."],
    ]
    assert len(command(train.main, "--list=knobs").out.splitlines()) > 80


NORMS = (
    "AcrossHeads LayerNormPerHead OffsetLayerNorm OffsetRMSNorm PredictionHead RMSNorm "
    "WeightlessRMSNorm"
)


@pytest.mark.parametrize(
    ("place", "fits"),
    [
        ("mlp", "GELU GatedMLP GatedShared GeGLU MLP MoE NoMLP SquaredReLU SwiGLU"),
        ("attention_norm", NORMS),
        ("attention.query_norm", NORMS),
        ("attention.output_gate", "OutputGate"),
        ("attention.linear", "Linear"),
        ("", "Block NormalizedResidualBlock ParallelBlock PostNormBlock SandwichBlock"),
        (
            "attention",
            "Attention GatedDeltaNet KimiDeltaNet LateNormAttention LatentAttention "
            "LightningAttention Mamba2 MixerPair NoMixer ShortConvolution",
        ),
    ],
)
def test_parts_of_a_place_are_those_of_its_role(command: Command, place: str, fits: str) -> None:
    out = command(train.main, f"--list=parts:model.blocks[0].{place}".rstrip(".")).out
    assert [*shown(out)] == fits.split()


def test_torchs_norms_are_norms_and_modules_of_no_role_fit_any(command: Command) -> None:
    for made in ("LayerNorm(normalized_shape=32)", "Identity"):
        use = f"--config=use:model.norm=torch.nn.{made}"
        assert command(train.main, "--config=config:debug", use, "--dry_run").status == 0


def test_lists_follow_the_directives_beside_them(command: Command) -> None:
    flags = ("--config=config:debug", "--config=fiddler:use_moe", "--config=tag:HiddenDim=48")
    out = command(train.main, *flags, "--list=knobs:model.blocks[0].mlp").out
    assert out.startswith("Settings of config:debug with fiddler:use_moe, tag:HiddenDim=48\n")
    found = shown(out)
    assert found["model.blocks[0].mlp"][1] == "MoE"
    assert found["model.blocks[0].mlp.router.hidden_dim"][1] == "48 <- model.hidden_dim"
    out = command(train.main, *flags, "--config=set:seed=1", "--list=tags").out
    assert "use_moe, tag:HiddenDim=48 and 1 more sets them" in out
    assert shown(out)["tag:HiddenDim"][0] == "model.hidden_dim=48"
    out = command(train.main, *flags, "--list=parts:model.blocks[0].mlp.router").out
    assert "which is SoftmaxRouter" in out
    wrong = command(train.main, "--config=fiddler:use_mo", "--list=knobs")
    assert wrong.status == 2 and "Did you mean use_moe" in wrong.err
    assert command(train.main, "--config=fiddler:use_mo", "--list=fiddlers").status == 0


def test_help_of_every_command_and_of_a_config(command: Command) -> None:
    for main in (train.main, sweep.main, sample.main):
        status, out, err = command(main, "--help")
        assert (status, err) == (0, "")
        assert "--debug" in out and "model.hidden_dim" not in out
    gpt2 = "--config=config:gpt2_124m"
    out = command(train.main, "-?", gpt2, "--config=set:seed=1").out
    assert command(train.main, gpt2, "--config=set:seed=1", "--help").out == out
    found = shown(out.partition("Parameters of config:gpt2_124m with set:seed=1,")[2])
    assert found["seed"][1] == "1"
    layers = ["int", "12", "number of layers, including `first_blocks`."]
    assert found["model.num_layers"] == layers and "optimizer.lr" in found
    assert "model.blocks[0].attention.hidden_dim" not in found, "inherited"
    assert not {"model.norm", "evaluators"} & found.keys(), "components"
    assert out.index("optimizer.weight_decay") < out.index("optimizer.eps"), "what is set first"
    status, out, err = command(train.main, "--help", "--config=config:bas")
    assert status == 2 and "--debug" in out and "Did you mean base?" in err


LAB = """
import fiddle as fdl
from fidgpt.configs import debug

class Heat(fdl.Tag):
    'How hot it is, in kelvin.'

def narrow(width: int = 16) -> fdl.Config:
    'As narrow as can be.'
    cfg = debug()
    cfg.model.hidden_dim = width
    fdl.add_tag(cfg.model, 'dropout', Heat)
    return cfg
"""


@pytest.mark.slow
def test_configs_of_modules_and_files(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pagelab.py").write_text(LAB)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    narrow = "--config=config:pagelab.narrow"
    status, out, err = command(train.main, narrow, "--help")
    assert (status, err) == (0, "") and "As narrow as can be." in out
    assert shown(out.partition("Parameters of config:pagelab")[2])["model.hidden_dim"][1] == "16"
    out = command(train.main, f"{narrow}(48)", "--list=knobs:model").out
    assert shown(out)["model.hidden_dim"] == ["int", "48", "width of the residual stream."]
    heat = shown(command(train.main, narrow, "--list=tags").out)["tag:pagelab.Heat"]
    assert heat == ["model.dropout=0.0", "How hot it is, in kelvin."]
    text = command(train.main, "--config=config:debug", "--print=yaml").out
    for steps in (10, 11):
        Path("my.yaml").write_text(text.replace("num_steps: 10", f"num_steps: {steps}"))
        out = command(train.main, "--config=config_file:my.yaml", "--list=knobs:num_steps").out
        assert out.startswith("Settings of config_file:my.yaml\n")
        assert shown(out)["num_steps"][:2] == ["int", str(steps)]
