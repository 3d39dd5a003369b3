"""A model saved in the hub's format."""

import json
from pathlib import Path
from typing import Any

import torch

from fidgpt.data import Tokenizer
from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.files import CONFIG, is_hub_directory, write_json, write_weights
from fidgpt.interop.hugging_face.load import fitting_family, require_memory
from fidgpt.interop.hugging_face.tensors import layout_of
from fidgpt.model import LanguageModel


def write_tokenizer(tokenizer: Tokenizer, directory: Path, *, seq_len: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json, from which AutoTokenizer makes one."""
    path = directory / "tokenizer.json"
    tokenizer.save(path)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": seq_len,
        "eos_token": _name(json.loads(path.read_text(encoding="utf-8")), tokenizer.end_of_text),
        "clean_up_tokenization_spaces": False,
    }
    write_json(directory / "tokenizer_config.json", settings)


def _name(content: Any, number: int) -> str | None:
    """How a tokenizer.json writes a token."""
    added = {one["id"]: one["content"] for one in content.get("added_tokens", ())}
    vocabulary = content["model"].get("vocab", {})
    return added.get(number) or next((word for word, n in vocabulary.items() if n == number), None)


@torch.no_grad()
def save_hf(
    model: LanguageModel,
    directory: str | Path,
    *,
    seq_len: int,
    tokenizer: Tokenizer | None = None,
    max_shard_size: int = 5_000_000_000,
) -> str:
    """Writes config.json, the weights and the tokenizer as transformers would.

    The family is found by what the model computes, and low-rank adapters are added to the weights
    beside them. Needs memory for one shard more, and for copies of what has adapters. Returns the
    name of transformers' class.

    Args:
      model: with memory.
      directory: made where it is not there.
      seq_len: the longest sequence that the model is for, in tokens.
      tokenizer: its files are written too, and its end of text is named.
      max_shard_size: bytes; of one shard there is one file, of more an index too.

    Raises:
      ConfigError: the model is on the meta device, or computes what no family of the hub does that
        we know: then the nearest one is named, and in what it differs. Or the directory has a
        config.json of something else, as a run's has, which stays as it is.
    """
    require_memory(model)
    directory = Path(directory).expanduser()
    _refuse_another_config(directory / CONFIG)
    family, settings, said = fitting_family(model, seq_len=seq_len)
    layout = layout_of(family, model, settings, merge=True)
    directory.mkdir(parents=True, exist_ok=True)
    write_weights(layout, directory, max_shard_size=max_shard_size)
    if tokenizer is not None:
        write_tokenizer(tokenizer, directory, seq_len=seq_len)
    about = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "bos_token_id": None,
        "eos_token_id": None if tokenizer is None else tokenizer.end_of_text,
        "pad_token_id": None,
    }
    write_json(directory / CONFIG, about | said)
    return family.architecture


def _refuse_another_config(path: Path) -> None:
    if path.exists() and not is_hub_directory(path.parent):
        raise ConfigError(
            f"{path} is no config of a model on the hub, and would be lost; a run goes on with "
            "its own: name another directory, such as one that does not exist yet."
        )
