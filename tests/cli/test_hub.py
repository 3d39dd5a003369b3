"""Models of Hugging Face's hub on the command line: trained on from, written from, exported to."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fidgpt.cli import export, sample, train
from fidgpt.configs import debug
from fidgpt.data import ByteTokenizer
from fidgpt.graph import bind, build
from fidgpt.interop import save_hf
from fidgpt.model import materialize
from fidgpt.train import BFloat16

Command = Callable[..., Any]
QUICK = ("--config=fiddler:smoke_test(1)", "--config=set:trackers=[]", "--config=set:samples=None")


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A directory as of the hub, of weights that no seed would draw."""
    cfg = bind(debug())
    with torch.device("meta"):
        model = build(cfg.model)
    materialize(model, device=torch.device("cpu"), seed=1234)
    path = tmp_path / "hub"
    save_hf(model, path, seq_len=cfg.seq_len, tokenizer=ByteTokenizer())
    return path


def test_a_run_begins_with_the_weights(command: Command, hub: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    flags = (f'--config=config:from_hf("{hub}")', *QUICK, "--config=tag:LearningRate=0")
    assert "load_hf" in command(train.main, *flags, "--dry_run").out
    assert command(train.main, *flags, f"--run_dir={run}").status == 0
    status, written, _ = command(export.main, str(run), str(out))
    assert (status, written) == (0, f"{out} holds a LlamaForCausalLM of transformers.\n")
    ours, theirs = (load_file(path / "model.safetensors") for path in (out, hub))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    names = [sorted(file.name for file in path.iterdir()) for path in (out, hub)]
    assert names[0] == names[1]
    assert all((out / name).read_text() == (hub / name).read_text() for name in names[0][:1])


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize(
    ("written", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_a_text_is_written_in_the_format_of_the_file(
    command: Command,
    hub: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    written: str,
    dtype: torch.dtype,
) -> None:
    config = json.loads((hub / "config.json").read_text())
    del config["dtype"]
    (hub / "config.json").write_text(json.dumps(config | {key: written}))
    seen: list[torch.dtype] = []

    def watch(model: nn.Module) -> None:
        seen.append(next(model.parameters()).dtype)

    monkeypatch.setattr("fidgpt.train.native_precision", BFloat16)
    monkeypatch.setattr("fidgpt.model.generation.prepare_to_write", watch)
    assert command(sample.main, str(hub), "--num_tokens=2").status == 0
    assert seen == [dtype]


def test_a_run_goes_on_without_them(command: Command, hub: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = (f'--config=config:from_hf("{hub}")', *QUICK, f"--run_dir={run}")
    assert command(train.main, *flags).status == 0
    (hub / "model.safetensors").unlink()
    assert command(train.main, f"--resume={run}", "--config=set:num_steps=2").status == 0


def test_a_changed_model_must_be_meant(command: Command, hub: Path, tmp_path: Path) -> None:
    flags = (f'--config=config:from_hf("{hub}")', *QUICK, f"--run_dir={tmp_path / 'run'}")
    changed = "--config=set:model.blocks[0].attention.window=3"
    status, _, err = command(train.main, *flags, changed)
    assert status == 2
    assert "blocks.*.attention.window is None, in the model 3" in err
    assert "allow it: may_differ=['blocks.*.attention.window']" in err
    allowed = "--config=set:weights.may_differ=['blocks.*.attention.*']"
    assert command(train.main, *flags, changed, allowed).status == 0


def test_adapters_are_trained_beside_them_and_added_in_the_end(
    command: Command, hub: Path, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    flags = (f'--config=config:from_hf("{hub}")', *QUICK, "--config=fiddler:use_lora")
    assert command(train.main, *flags, f"--run_dir={run}").status == 0
    assert command(export.main, str(run), str(out), "--shard_gb=0.001").status == 0
    ours, theirs = (load_file(path / "model.safetensors") for path in (out, hub))
    assert ours.keys() == theirs.keys()
    same = {name for name, tensor in ours.items() if torch.equal(tensor, theirs[name])}
    assert same == {name for name in ours if "proj" not in name}


def test_text_is_written_from_them(command: Command, hub: Path) -> None:
    status, out, _ = command(sample.main, str(hub), "--prompt=def ", "--num_tokens=3")
    assert status == 0
    assert out.startswith("def ")
    status, _, err = command(sample.main, str(hub), "--step=3")
    assert status == 2
    assert "--step=3: " in err


def test_mistakes(
    command: Command, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, message in {
        (): "name a run and a directory",
        (str(tmp_path / "no"), str(tmp_path / "out")): "holds no run",
    }.items():
        status, _, err = command(export.main, *arguments)
        assert status == 2
        assert message in err
    with monkeypatch.context() as full:
        error = SafetensorError("I/O error: No space left on device (os error 28)")
        full.setattr("fidgpt.interop.hugging_face.files.save_file", Mock(side_effect=error))
        status, _, err = command(export.main, str(hub), str(tmp_path / "full"))
        assert status == 2 and "full cannot be written: I/O error: No space left" in err
    shutil.rmtree(hub)
    status, _, err = command(train.main, f'--config=config:from_hf("{hub}")', "--print")
    assert status == 2
    assert f"{hub}/config.json cannot be read: No such file or directory." in err
