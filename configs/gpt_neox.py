"""GPT-NeoX (Black et al., 2022, arXiv:2204.06745) and Pythia: parallel blocks, partial RoPE."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.configs.activations import activate
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import NEOX_MLP, QKV, Tensors, in_layers, joined
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_layer_norm, use_parallel_block
from fidgpt.train import Trainer


@variant_of(decoder, rotary_share=0.25, attention_bias=True, mlp_bias=True)
def gpt_neox(
    cfg: fdl.Config[Trainer], *, eps: float, parallel: bool = True, activation: str = "gelu"
) -> None:
    """A decoder with LayerNorm, biases and plain MLPs; parallel blocks have two norms."""
    use_layer_norm(cfg, eps=eps)
    activate(cfg, activation)
    if parallel:
        use_parallel_block(cfg)


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors; each head has its own queries, keys and values."""
    layer, heads = "gpt_neox.layers.*", settings["num_heads"]
    norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    return {
        "embedding": "gpt_neox.embed_in",
        **joined(QKV, f"{layer}.attention.query_key_value", of=3, groups=heads),
        **in_layers(layer, {"attention.out": "attention.dense", **norms, **NEOX_MLP}),
        "norm": "gpt_neox.final_layer_norm",
        "unembedding": "embed_out",
    }


HUB = family(
    "gpt_neox",
    gpt_neox,
    "attention_bias activation",
    architecture="GPTNeoXForCausalLM",
    settings={"head_dim": ..., "num_kv_heads": ..., "eps": "layer_norm_eps"}
    | {"theta": "rotary_emb_base", "rotary_share": "rotary_pct"}
    | {"parallel": "use_parallel_residual"},
    tensors=_tensors,
    fixed={"head_dim": (None,)},
    ignored=("*.attention.bias", "*.attention.masked_bias"),  # masks in old files
    whole_heads=True,
)


_pythia = partial(gpt_neox, vocab_size=50_304, seq_len=2048)


def pythia_14m() -> fdl.Config[Trainer]:
    """14 million parameters, 12.9 of them in the two tables."""
    return _pythia(hidden_dim=128, num_layers=6, num_heads=4, ffn_dim=512)


def pythia_31m() -> fdl.Config[Trainer]:
    """30 million parameters."""
    return _pythia(hidden_dim=256, num_layers=6, num_heads=8, ffn_dim=1024)


def pythia_70m() -> fdl.Config[Trainer]:
    """70 million parameters."""
    return _pythia(hidden_dim=512, num_layers=6, num_heads=8, ffn_dim=2048)


def pythia_160m() -> fdl.Config[Trainer]:
    """162 million parameters."""
    return _pythia(hidden_dim=768, num_layers=12, num_heads=12, ffn_dim=3072)


def pythia_410m() -> fdl.Config[Trainer]:
    """405 million parameters."""
    return _pythia(hidden_dim=1024, num_layers=24, num_heads=16, ffn_dim=4096)


def pythia_1b() -> fdl.Config[Trainer]:
    """1.0 billion parameters, in wide heads."""
    return _pythia(hidden_dim=2048, num_layers=16, num_heads=8, ffn_dim=8192)


def pythia_1_4b() -> fdl.Config[Trainer]:
    """1.4 billion parameters."""
    return _pythia(hidden_dim=2048, num_layers=24, num_heads=16, ffn_dim=8192)


def pythia_2_8b() -> fdl.Config[Trainer]:
    """2.8 billion parameters."""
    return _pythia(hidden_dim=2560, num_layers=32, num_heads=32, ffn_dim=10_240)


def pythia_6_9b() -> fdl.Config[Trainer]:
    """6.9 billion parameters."""
    return _pythia(hidden_dim=4096, num_layers=32, num_heads=32, ffn_dim=16_384, vocab_size=50_432)


def pythia_12b() -> fdl.Config[Trainer]:
    """12 billion parameters."""
    return _pythia(hidden_dim=5120, num_layers=36, num_heads=40, ffn_dim=20_480, vocab_size=50_688)


def gpt_neox_20b() -> fdl.Config[Trainer]:
    """21 billion parameters."""
    sizes = {"hidden_dim": 6144, "num_layers": 44, "num_heads": 64, "ffn_dim": 24_576}
    return _pythia(**sizes, vocab_size=50_432, activation="gelu_fast")
