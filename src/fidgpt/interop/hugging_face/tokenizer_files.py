"""The files beside a model's weights: its tokenizer, and how transformers writes texts with it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fidgpt.configs.hub import Family
from fidgpt.data import DataError, Tokenizer, load_tokenizer, with_begin
from fidgpt.interop.hugging_face.files import read_json, write_json
from fidgpt.train.run_directory import print_stderr

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
GENERATION = "generation_config.json"
# What a directory of the hub may hold besides, of its tokenizer.
_OTHERS = ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "tokenizer.model")
FILES = (TOKENIZER, SETTINGS, GENERATION, *_OTHERS)
# The pattern by which AutoTokenizer splits texts of these families, whatever tokenizer.json has.
_OWN_SPLIT = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen3_5_moe_text": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def copies_files(tokenizer: Tokenizer, source: Path, directory: Path) -> bool:
    """Copy the files of a directory of the hub; return whether its tokenizer is this one.

    They hold more than fidgpt reads, such as the names of further special tokens.
    """
    try:
        theirs = load_tokenizer(source / TOKENIZER)
    except DataError:
        return False
    if _settings_of(theirs) != _settings_of(tokenizer):
        return False
    if source.resolve() != directory.resolve():
        for name in FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, directory / name)
    return True


def _settings_of(tokenizer: Tokenizer) -> tuple[Any, ...]:
    values, special = tokenizer.token_values(), tokenizer.special_ids()
    return values, special, tokenizer.end_of_text, tokenizer.begin_of_text, tokenizer.chat


def write_tokenizer(
    tokenizer: Tokenizer, directory: Path, *, seq_len: int, family: Family
) -> dict[str, int | None]:
    """Write tokenizer.json and tokenizer_config.json, from which AutoTokenizer makes one.

    Where documents begin with a token, it puts that in front of texts. Returns the ids of the
    tokens that begin and end texts and that pad them. Warns where AutoTokenizer makes one that
    splits texts in another way.
    """
    path = directory / TOKENIZER
    (directory / SETTINGS).unlink(missing_ok=True)
    tokenizer.save(path)
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"].get("vocab", {})
    if isinstance(vocabulary, list):  # of a Unigram, with scores
        vocabulary = {name: number for number, (name, _) in enumerate(vocabulary)}
    names = {number: name for name, number in vocabulary.items()}
    names |= {token["id"]: token["content"] for token in content.get("added_tokens", ())}
    begin = tokenizer.begin_of_text if tokenizer.puts_begin else None
    if begin is not None:
        content["post_processor"] = _beginning(content.get("post_processor"), names[begin], begin)
        write_json(path, content)
    path_of_settings = directory / SETTINGS
    kept = read_json(path_of_settings) if path_of_settings.is_file() else {}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
        "eos_token": names[tokenizer.end_of_text],
        **kept,
        "bos_token": kept.get("bos_token") or names.get(tokenizer.begin_of_text),
        "add_bos_token": begin is not None,
    }
    if tokenizer.chat is not None:  # transformers adds nothing to what a template writes
        begins = tokenizer.begin_of_text == tokenizer.end_of_text
        front = names[tokenizer.end_of_text] if begins else ""
        settings["chat_template"] = with_begin(tokenizer.chat, front)
    write_json(directory / SETTINGS, settings)
    pattern = _OWN_SPLIT.get(family.model_type)
    if pattern is not None and pattern not in _strings(content.get("pre_tokenizer")):
        print_stderr(
            f"warning: AutoTokenizer splits texts for {family.model_type} in a way of its own, and "
            f"gives other tokens than {path}. Load it by transformers' PreTrainedTokenizerFast."
            f"from_pretrained({str(directory)!r}), which gives those the model was trained on."
        )
    numbers = {name: number for number, name in names.items()}
    keys = ("bos_token", "eos_token", "pad_token")
    return {f"{key}_id": numbers.get(_content(settings.get(key))) for key in keys}


def _content(token: Any) -> Any:
    """Return the name of a token in a tokenizer_config.json."""
    return token.get("content") if isinstance(token, dict) else token


def _beginning(processor: Any, name: str, number: int) -> Any:
    """Return a post-processor that puts a token in front of texts, unless one does already."""
    if name in _strings(processor):
        return processor
    token, text = {"SpecialToken": {"id": name, "type_id": 0}}, {"id": "A", "type_id": 0}
    other = {"SpecialToken": {"id": name, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}
    template = {
        "type": "TemplateProcessing",
        "single": [token, {"Sequence": text}],
        "pair": [token, {"Sequence": text}, *other],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}},
    }
    if processor is None:
        return template
    return {"type": "Sequence", "processors": [processor, template]}


def _strings(content: Any) -> Iterator[str]:
    """Yield the strings in a JSON object."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict | list):
        for part in content.values() if isinstance(content, dict) else content:
            yield from _strings(part)
