"""Weights in four bits: codes, losses and exports equal to those of other packages."""

import math
from collections.abc import Callable
from pathlib import Path

import fiddle as fdl
import pytest
import torch
import torch.nn.functional as F
from small_models import drawn, started
from torch import Tensor, nn

from fidgpt import interop
from fidgpt.fiddlers import use_qlora
from fidgpt.model import LanguageModel, Linear, QLoRALinear, is_adapter
from fidgpt.model.quantized import from_nf4, to_nf4
from fidgpt.optim.groups import train_only

Build = Callable[[fdl.Config], LanguageModel]

PEFT = [5.850865840911865, 5.641475677490234, 5.382659912109375, 5.2073974609375, 5.041524887084961]
LLAMA = {
    **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 300},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 128, "tie_word_embeddings": False},
}


def test_codes_are_those_of_bitsandbytes() -> None:
    """Of `quantize_4bit(linspace(-1, 1, 64), quant_type="nf4")` in version 0.50.2."""
    codes, scales = to_nf4(torch.linspace(-1, 1, 64) * 3)
    expected = [0, 0, 1, 17, 17, 17, 18, 34, 34, 51, 52, 68, 69, 85, 102, 103, 120, 136, 153]
    expected += [170, 171, 187, 204, 204, 221, 221, 238, 238, 238, 239, 255, 255]
    assert codes.tolist() == expected and scales.tolist() == [3.0]
    assert torch.equal(to_nf4(from_nf4(codes, scales, torch.float32))[0], codes)
    assert not from_nf4(*to_nf4(torch.zeros(64)), torch.float32).any()


@pytest.mark.slow
def test_a_layer_computes_with_its_dequantized_weight_and_keeps_its_codes() -> None:
    with torch.device("meta"):
        made = QLoRALinear(32, 24, rank=3, alpha=6.0, bias=True)
    layer = started(made)
    with torch.no_grad():
        layer.lora_b.copy_(waves(24, 3, step=1.5))
        layer.bias.copy_(waves(24, step=2.5))
    x = drawn(2, 5, 32).requires_grad_()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = layer(x)
    assert not any(one.shape in ((24, 32), (32, 24)) for one in kept)
    again = x.detach().requires_grad_()
    expected = F.linear(again, layer.merged_weight(), layer.bias)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, again.grad)
    with pytest.raises(ValueError, match="must be a multiple of 64"):
        QLoRALinear(5, 5, rank=1)


def waves(*shape: int, step: float) -> Tensor:
    """Numbers that look random, whatever the generator."""
    squares = torch.arange(math.prod(shape), dtype=torch.float64).square()
    return (torch.sin(squares * step) * 0.1).float().view(shape)


def hub_model(path: Path, build: Build) -> LanguageModel:
    """A model whose weights are waves, saved in a directory of the hub."""
    model = build(interop.from_hf(str(path)))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            if parameter.dim() == 2:
                parameter.copy_(waves(*parameter.shape, step=1.0 + number / 7))
    (path / "config.json").unlink()
    interop.save_hf(model, path, seq_len=128)
    return model


def quantized(path: Path, build: Build) -> LanguageModel:
    """The model of a directory with weights in four bits, and adapters that are waves."""
    cfg = interop.from_hf(str(path))
    use_qlora(cfg, rank=4, alpha=8.0)
    model = build(cfg)
    interop.load_hf(model, path)
    train_only(model, is_adapter)
    with torch.no_grad():
        for number, layer in enumerate(layers_of(model)):
            layer.lora_a.copy_(waves(*layer.lora_a.shape, step=2.0 + number / 5))
    return model


def layers_of(model: nn.Module) -> list[QLoRALinear]:
    return [module for module in model.modules() if isinstance(module, QLoRALinear)]


@pytest.mark.slow
def test_losses_of_five_steps_are_those_of_peft(hub: Callable[..., Path], build: Build) -> None:
    """Of peft 0.21.2 on bitsandbytes 0.50.2 and transformers 5.23, on the same weights."""
    path = hub(**LLAMA)
    hub_model(path, build)
    model = quantized(path, build).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0)
    tokens = (torch.arange(4 * 33).square() * 7 % 300).view(4, 33)
    losses: list[float] = []
    for _ in range(5):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(PEFT, abs=1e-5)


@pytest.mark.slow
def test_weights_are_quantized_as_they_are_read_and_exported_with_their_adapters(
    hub: Callable[..., Path], build: Build, load: Callable[[Path], LanguageModel], tmp_path: Path
) -> None:
    path = hub(**LLAMA)
    plain = hub_model(path, build)
    model = quantized(path, build)
    matrices = {name: one for name, one in plain.named_modules() if isinstance(one, Linear)}
    assert len(matrices) == len(layers_of(model)) == 14
    for name, one in matrices.items():
        values = from_nf4(*to_nf4(one.weight), torch.float32).view(one.weight.shape)
        layer = model.get_submodule(name)
        assert isinstance(layer, QLoRALinear) and torch.equal(layer.weight, values)
        with torch.no_grad():
            layer.lora_b.copy_(waves(*layer.lora_b.shape, step=3.0))
    target = tmp_path / "exported"
    interop.save_hf(model, target, seq_len=128)
    tokens = torch.arange(12)[None]
    torch.testing.assert_close(load(target)(tokens), model(tokens), atol=1e-5, rtol=1e-5)
