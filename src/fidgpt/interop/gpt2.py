"""GPT-2 of Hugging Face's transformers: its sizes as a config, its weights in and out."""

from pathlib import Path
from typing import Any

import fiddle as fdl
import torch
from torch import nn

from fidgpt.configs import gpt2_124m
from fidgpt.data import TokenizerFile
from fidgpt.fiddlers import untie_embeddings
from fidgpt.graph import ConfigError, find
from fidgpt.interop.gpt2_layout import HEAD, TABLE, Layout, dropouts_of, layout_of, settings_of
from fidgpt.interop.hf_files import CONFIG, TensorFiles, read_json, write_directory
from fidgpt.model import GELU, Attention, Transformer
from fidgpt.train import Trainer

_PREFIX = "transformer."  # of every name but the head's, in files of a model that has a head
_MASKS = (".attn.bias", ".attn.masked_bias")  # buffers in old files: ones in a triangle, and -1e4
_LISTED = 12

# What config.json means where it is silent, and what it has to say for us to compute the same.
_SIZES = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50_257}
_ONLY = {
    "activation_function": ["gelu_new", "gelu_pytorch_tanh"],  # two names of one function
    "scale_attn_weights": [True],
    "scale_attn_by_inverse_layer_idx": [False],
    "add_cross_attention": [False],
}


def gpt2_from_hf(directory: str | Path) -> fdl.Config[Trainer]:
    """`gpt2_124m` in the sizes of a Hugging Face GPT-2, and with its tokenizer.json if it has one.

    `load_gpt2` reads the weights into the model that this builds. What config.json says of
    training, such as dropout, is not taken over.

    Raises:
      ConfigError: the directory holds no config.json, or not that of a GPT-2.
    """
    directory = Path(directory).expanduser()
    settings = _read_settings(directory)
    cfg = gpt2_124m()
    cfg.model.num_layers = settings["n_layer"]
    cfg.model.hidden_dim = settings["n_embd"]
    cfg.seq_len = settings["n_positions"]
    cfg.vocab_size = settings["vocab_size"]
    for attention in find(cfg.model, Attention):
        attention.head_dim = settings["n_embd"] // settings["n_head"]
    if settings["n_inner"] != 4 * settings["n_embd"]:
        for mlp in find(cfg.model, GELU):
            mlp.ffn_dim = settings["n_inner"]
    for norm in find(cfg.model, nn.LayerNorm):
        norm.eps = settings["layer_norm_epsilon"]
    if not settings["tie_word_embeddings"]:
        untie_embeddings(cfg)
    tokenizer = directory.resolve() / "tokenizer.json"
    if tokenizer.exists():
        cfg.data.corpus.tokenizer = fdl.Config(TokenizerFile, path=str(tokenizer))
    return cfg


def load_gpt2(model: Transformer, directory: str | Path) -> None:
    """Copies the weights of a Hugging Face GPT-2 into a model of its architecture and sizes.

    Reads model.safetensors, or the shards that its index names, one tensor at a time. The model is
    left as it was unless every tensor fits.

    Raises:
      ConfigError: the directory holds no GPT-2, or files that cannot be read.
      ValueError: the model is no GPT-2, is on the meta device or has other sizes; or tensors are
        missing, unknown or of another shape, all of which are listed.
    """
    directory = Path(directory).expanduser()
    theirs, ours = _read_settings(directory), settings_of(model)
    _require(
        f"{directory / CONFIG} is of another model",
        [f"{k} is {theirs[k]}, in the model {ours[k]}" for k in ours if theirs[k] != ours[k]],
    )
    layout, files = layout_of(model), TensorFiles(directory)
    names = {name.removeprefix(_PREFIX): name for name in files.shapes if not _is_mask(name)}
    _require(f"the tensors of {directory} do not fit the model", _misfits(layout, names, files))
    for name, views in layout.items():
        parts = files[names[name]].split([view.shape[-1] for view in views], dim=-1)
        for view, part in zip(views, parts, strict=True):
            view.copy_(part)


def save_gpt2(model: Transformer, directory: str | Path) -> None:
    """Writes config.json and model.safetensors, from which transformers makes a GPT2LMHeadModel.

    Needs as much memory as the weights once more. No token is named as the end of text: that is
    the tokenizer's affair.

    Raises:
      ValueError: the model is no GPT-2, or is on the meta device.
    """
    settings = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **settings_of(model),
        **dropouts_of(model),
        **{key: values[0] for key, values in _ONLY.items()},
        "bos_token_id": None,
        "eos_token_id": None,
    }
    tensors = {
        name if name == HEAD else _PREFIX + name: torch.cat(views, dim=-1).contiguous().cpu()
        for name, views in layout_of(model).items()
    }
    write_directory(Path(directory).expanduser(), settings=settings, tensors=tensors)


def _read_settings(directory: Path) -> dict[str, Any]:
    """What config.json says, and what it means where it is silent."""
    path = directory / CONFIG
    said = read_json(path)
    if said.get("model_type") != "gpt2":
        raise ConfigError(f"{path} says model_type={said.get('model_type')!r}; gpt2 is needed.")
    wrong = [
        f"{key} is {said[key]!r}, and fidgpt's GPT-2 computes {' or '.join(map(repr, values))}"
        for key, values in _ONLY.items()
        if said.get(key, values[0]) not in values
    ]
    sizes = {key: said.get(key, size) for key, size in _SIZES.items()}
    wrong += [
        f"{key} is {size!r}, and has to be a whole number above 0"
        for key, size in sizes.items()
        if type(size) is not int or size < 1
    ]
    if not wrong and sizes["n_embd"] % sizes["n_head"]:
        wrong = [f"n_embd={sizes['n_embd']} is no whole number of n_head={sizes['n_head']} heads"]
    if wrong:
        raise ConfigError(f"{path} cannot be used:\n  " + "\n  ".join(wrong))
    return sizes | {
        "n_inner": said.get("n_inner") or 4 * sizes["n_embd"],
        "layer_norm_epsilon": said.get("layer_norm_epsilon", 1e-5),
        "tie_word_embeddings": said.get("tie_word_embeddings", True),
    }


def _is_mask(name: str) -> bool:
    return name.endswith(_MASKS)


def _misfits(layout: Layout, names: dict[str, str], files: TensorFiles) -> list[str]:
    """A line for each tensor that is missing, unknown or of another shape."""
    wanted = {
        name: [*views[0].shape[:-1], sum(view.shape[-1] for view in views)]
        for name, views in layout.items()
    }
    found = {name: files.shapes[theirs] for name, theirs in names.items()}
    if found.get(HEAD) == found.get(TABLE) and HEAD not in wanted and TABLE in found:
        del found[HEAD]  # a tied table, saved twice
        if not torch.equal(files[names[HEAD]], files[names[TABLE]]):
            return [f"{HEAD} differs from {TABLE}, although {CONFIG} ties them"]
    return [
        f"{name}: {found.get(name, 'absent')} there, {wanted.get(name, 'absent')} in the model"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


def _require(message: str, wrong: list[str]) -> None:
    if wrong:
        rest = len(wrong) - _LISTED
        listed = wrong[:_LISTED] + ([f"and {rest} more"] if rest > 0 else [])
        raise ValueError(message + ":\n  " + "\n  ".join(listed))
