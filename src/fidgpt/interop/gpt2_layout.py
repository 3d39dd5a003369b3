"""A Transformer seen as a GPT-2: its settings and tensors, by the names that transformers uses."""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from fidgpt.model import GELU, Attention, Block, LearnedPositions, Transformer, Unembedding

T = TypeVar("T")
Layout = dict[str, list[Tensor]]

TABLE, HEAD = "wte.weight", "lm_head.weight"


def settings_of(model: Transformer) -> dict[str, Any]:
    """What config.json says of a model: sizes, and what else decides which numbers it computes.

    Raises:
      ValueError: the model has another architecture.
    """
    layers = _layers(model)
    norms = [model.norm, *(n for layer in layers for n in (layer.attention_norm, layer.mlp_norm))]
    vocab_size, hidden_dim = model.embedding.weight.shape
    return {
        "n_layer": len(layers),
        "n_head": _alike("num_heads", (layer.attention.num_heads for layer in layers)),
        "n_embd": hidden_dim,
        "n_positions": _positions(model).shape[0],
        "vocab_size": vocab_size,
        "n_inner": _alike("ffn_dim", (layer.mlp.up.out_features for layer in layers)),
        "layer_norm_epsilon": _alike("eps", (_as(n, nn.LayerNorm, "a norm").eps for n in norms)),
        "tie_word_embeddings": model.unembedding.weight is model.embedding.weight,
    }


def dropouts_of(model: Transformer) -> dict[str, float]:
    """What config.json says of training.

    Raises:
      ValueError: the layers differ.
    """
    blocks = [_as(block, Block, f"blocks.{i}") for i, block in enumerate(model.blocks)]
    attentions = [layer.attention for layer in _layers(model)]
    return {
        "embd_pdrop": model.dropout,
        "resid_pdrop": _alike("dropout", (block.dropout for block in blocks)),
        "attn_pdrop": _alike("dropout", (attention.dropout for attention in attentions)),
    }


def layout_of(model: Transformer) -> Layout:
    """For each tensor of a file, the views of our parameters that lie side by side in it.

    Raises:
      ValueError: the model has another architecture, or no memory.
    """
    unembedding = _as(model.unembedding, Unembedding, "unembedding")
    layout = {TABLE: [model.embedding.weight.detach()], "wpe.weight": [_positions(model).detach()]}
    for i, layer in enumerate(_layers(model)):
        attention = layer.attention
        layout |= _entry(f"h.{i}.ln_1", layer.attention_norm)
        layout |= _entry(f"h.{i}.attn.c_attn", attention.query, attention.key, attention.value)
        layout |= _entry(f"h.{i}.attn.c_proj", attention.out)
        layout |= _entry(f"h.{i}.ln_2", layer.mlp_norm)
        layout |= _entry(f"h.{i}.mlp.c_fc", layer.mlp.up)
        layout |= _entry(f"h.{i}.mlp.c_proj", layer.mlp.down)
    layout |= _entry("ln_f", _as(model.norm, nn.LayerNorm, "norm"))
    if unembedding.weight is not model.embedding.weight:
        layout[HEAD] = [unembedding.weight.detach()]
    if any(view.is_meta for views in layout.values() for view in views):
        raise ValueError("the model has no memory yet: materialize it first.")
    return layout


def _entry(name: str, *parts: nn.Linear | nn.LayerNorm) -> Layout:
    """Theirs is a Conv1D, which keeps its weight as [in, out]; a vector has no other side."""
    biases = [part.bias for part in parts if part.bias is not None]
    if len(biases) < len(parts):
        raise ValueError(f"the model's {name} has no bias, and in a GPT-2 it has: set bias=True.")
    return {
        f"{name}.weight": [part.weight.detach().t() for part in parts],
        f"{name}.bias": [bias.detach() for bias in biases],
    }


class _Layer(NamedTuple):
    """The parts of a block, known to be those of a GPT-2."""

    attention_norm: nn.LayerNorm
    attention: Attention
    mlp_norm: nn.LayerNorm
    mlp: GELU


def _layers(model: Transformer) -> list[_Layer]:
    return [_layer(block, f"blocks.{i}") for i, block in enumerate(model.blocks)]


def _layer(module: nn.Module, path: str) -> _Layer:
    block = _as(module, Block, path)
    attention = _as(block.attention, Attention, f"{path}.attention")
    if attention.rope is not None:
        raise ValueError(f"{path}.attention has a RoPE, and a GPT-2 learns its positions.")
    widths = {linear.out_features for linear in (attention.query, attention.key, attention.value)}
    if widths != {attention.out.out_features}:
        raise ValueError(
            f"{path}.attention has heads that are {' and '.join(map(str, sorted(widths)))} wide "
            f"together, and in a GPT-2 all are as wide as the model, {attention.out.out_features}."
        )
    return _Layer(
        _as(block.attention_norm, nn.LayerNorm, f"{path}.attention_norm"),
        attention,
        _as(block.mlp_norm, nn.LayerNorm, f"{path}.mlp_norm"),
        _as(block.mlp, GELU, f"{path}.mlp"),
    )


def _positions(model: Transformer) -> Tensor:
    return _as(model.embedding.positions, LearnedPositions, "embedding.positions").weight


def _as(part: object, kind: type[T], path: str) -> T:
    if not isinstance(part, kind):
        raise ValueError(
            f"{path} is a {type(part).__name__}, and in a GPT-2 it is a {kind.__name__}: "
            "begin with the config gpt2_124m, or with gpt2_from_hf."
        )
    return part


def _alike(name: str, values: Iterable[T]) -> T:
    found = set(values)
    if len(found) > 1:
        raise ValueError(f"layers differ in {name} ({found}), and a GPT-2 has one for all.")
    return found.pop()
