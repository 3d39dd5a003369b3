"""Products in float8: which maps are converted, and what is said where they cannot be computed."""

import sys

import pytest
import torch
from torch import nn

from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.fiddlers import use_float8
from fidgpt.model import Attention, Float8, Linear, LoRALinear, MachineError, SwiGLU
from fidgpt.model.wrappers import InFloat8, require_float8
from fidgpt.train import RunDirectory


def maps() -> nn.Module:
    return nn.ModuleDict({
        "fits": Linear(32, 16),
        "odd": Linear(32, 15),
        "adapted": LoRALinear(32, 16, rank=2),
        "attention": Attention(hidden_dim=32, head_dim=16),
        "mlp": SwiGLU(hidden_dim=32, ffn_dim=48),
    })  # fmt: skip


def test_linear_maps_whose_sizes_fit_are_converted_and_keep_their_names():
    names = [*maps().state_dict()]
    block = Float8(maps)()
    assert [*block.state_dict()] == names
    converted = {name for name, part in block.named_modules() if isinstance(part, InFloat8)}
    assert {"fits", "attention.query", "mlp.down"} <= converted
    assert not {"odd", "adapted"} & converted


def test_without_such_a_gpu_the_first_step_says_so():
    block = Float8(maps)()
    with pytest.raises(MachineError, match=r"a cpu does not support float8.*capability 8\.9"):
        block.get_submodule("fits")(torch.ones(2, 32))
    on_meta = Float8(lambda: maps().to("meta"))()
    assert on_meta.get_submodule("fits")(torch.ones(2, 32, device="meta")).shape == (2, 16)


def test_a_run_that_no_machine_here_can_compute_leaves_no_directory(tmp_path):
    cfg = debug()
    use_float8(cfg)
    with pytest.raises(MachineError, match="does not support float8"):
        build_trainer(cfg).train(RunDirectory(tmp_path / "run", texts={}))
    assert not (tmp_path / "run").exists()


def test_without_torchao_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(MachineError, match="pip install fidgpt\\[float8\\]"):
        require_float8(torch.device("cuda"))
