"""Models of Hugging Face's hub on the command line: trained on from, written from, exported to."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fidgpt import configs, data, graph, interop
from fidgpt.cli import export, sample, train
from fidgpt.model import materialize
from fidgpt.train import BFloat16

from .conftest import Command

pytestmark = pytest.mark.slow

QUICK = ("--config=fiddler:smoke_test(1)", "--config=set:trackers=[]", "--config=set:samples=None")


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A directory as of the hub, of weights that no seed would draw."""
    cfg = graph.bind(configs.debug())
    with torch.device("meta"):
        model = graph.build(cfg.model)
    materialize(model, device=torch.device("cpu"), seed=1234)
    path = tmp_path / "hub"
    interop.save_hf(model, path, seq_len=cfg.seq_len, tokenizer=data.ByteTokenizer())
    return path


@pytest.fixture
def flags(hub: Path, tmp_path: Path) -> list[str]:
    """Those of a run of one step that begins with the weights."""
    return [f'--config=config:from_hf("{hub}")', *QUICK, f"--run_dir={tmp_path / 'run'}"]


def test_a_run_begins_with_the_weights_and_goes_on_without(
    command: Command, hub: Path, flags: list[str], tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    flags.append("--config=tag:LearningRate=0")
    assert "load_hf" in command(train.main, *flags, "--dry_run").out
    assert command(train.main, *flags).status == 0
    status, written, _ = command(export.main, str(run), str(out))
    assert (status, written) == (0, f"{out} holds a LlamaForCausalLM of transformers.\n")
    ours, theirs = (load_file(path / "model.safetensors") for path in (out, hub))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    names = [sorted(file.name for file in path.iterdir()) for path in (out, hub)]
    assert names[0] == names[1]
    assert (out / "config.json").read_text() == (hub / "config.json").read_text()
    (hub / "model.safetensors").unlink()
    assert command(train.main, f"--resume={run}", "--config=set:num_steps=2").status == 0


def test_a_changed_model_must_be_meant(command: Command, flags: list[str]) -> None:
    flags.append("--config=set:model.blocks[0].attention.window=3")
    status, _, err = command(train.main, *flags)
    assert status == 2
    assert "blocks.*.attention.window is None, in the model 3" in err
    assert "allow it: may_differ=['blocks.*.attention.window']" in err
    allowed = "--config=set:weights.may_differ=['blocks.*.attention.*']"
    assert command(train.main, *flags, allowed).status == 0


def test_text_is_written_from_them_in_their_format(
    command: Command, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = command(sample.main, str(hub), "--prompt=def ", "--num_tokens=3")
    assert status == 0 and out.startswith("def ")
    status, _, err = command(sample.main, str(hub), "--step=3")
    assert status == 2 and "--step=3: " in err
    seen: list[torch.dtype] = []

    def watch(model: nn.Module) -> None:
        seen.append(next(model.parameters()).dtype)

    monkeypatch.setattr("fidgpt.train.native_precision", BFloat16)
    monkeypatch.setattr("fidgpt.model.generation.prepare_to_write", watch)
    config = json.loads((hub / "config.json").read_text())
    del config["dtype"]
    for key in ("dtype", "torch_dtype"):
        for written in ("float32", "bfloat16"):
            (hub / "config.json").write_text(json.dumps(config | {key: written}))
            assert command(sample.main, str(hub), "--num_tokens=2").status == 0
    assert seen == [torch.float32, torch.bfloat16] * 2


def test_mistakes(command: Command, hub: Path, tmp_path: Path) -> None:
    assert "name a run and a directory" in command(export.main).err
    assert "holds no run" in command(export.main, str(tmp_path / "no"), str(tmp_path / "out")).err
    shutil.rmtree(hub)
    status, _, err = command(train.main, f'--config=config:from_hf("{hub}")', "--print")
    assert status == 2
    assert f"{hub}/config.json cannot be read: No such file or directory." in err
