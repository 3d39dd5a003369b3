"""A tokenizer's files as transformers reads them."""

import json
from pathlib import Path
from typing import Any

from fidgpt.data import Tokenizer
from fidgpt.interop.hugging_face.files import write_json


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
