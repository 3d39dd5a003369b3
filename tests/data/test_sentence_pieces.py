"""Tokenizers with a letter for the space and tokens for bytes: those of Llama 2, Gemma and others.

They are made as the files of these models are, by the trainers of the `tokenizers` library.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from fidgpt import data
from fidgpt.data import documents

SPACE, SPECIAL = "\u2581", ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{value:02X}>" for value in range(256)]
ENDS = "\n\ta  b \ud55c\uae00 \U0001f469\u200d\U0001f680 <s> e\u0301 <0x41"


@pytest.fixture(scope="module")
def text(modules: list[str]) -> str:
    return ("".join(modules) * 6)[:1_000_000]


@pytest.fixture(scope="module")
def merged(text: str) -> models.Model:
    """A BPE without a word boundary, whose tokens begin with special ones and bytes."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False)
    backend.train_from_iterator([text[:100_000]], trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = [*SPECIAL, *BYTES, *sorted(model["vocab"], key=model["vocab"].get)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    merges = [tuple(pair) for pair in model["merges"]]
    return models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


@pytest.fixture(scope="module")
def likely(text: str) -> models.Model:
    """A Unigram, of which a token is worth its logarithm of probability."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=700, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>"
    )
    backend.train_from_iterator([text[:100_000]], trainer)
    found = [tuple(one) for one in json.loads(backend.to_str())["model"]["vocab"][1:]]
    tokens = [*((token, 0.0) for token in SPECIAL), *((token, -20.0) for token in BYTES), *found]
    return models.Unigram(tokens, unk_id=0, byte_fallback=True)


def made(name: str, merged: models.Model, likely: models.Model) -> tokenizers.Tokenizer:
    """The tokenizer of a model, with the parts of its published file."""
    backend = tokenizers.Tokenizer(likely if name == "unigram" else merged)
    after: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    to_space = normalizers.Replace(" ", SPACE)
    if name in ("llama2", "phi3"):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), to_space])
        after.append(decoders.Strip(" ", 1, 0))
    elif name == "gemma":
        backend.normalizer = to_space
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:  # Mistral's later files, and those of Unigrams
        scheme, splits = ("first", False) if name == "mistral" else ("always", True)
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=splits)
        after.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(after)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    backend.add_special_tokens([AddedToken(one, normalized=False) for one in SPECIAL])
    if name == "phi3":  # has added tokens that take the spaces behind them away
        tokens = [AddedToken("<|user|>", rstrip=True), AddedToken("<|end|>", rstrip=True)]
        backend.add_tokens(tokens)
    if name == "gemma":
        backend.add_tokens([AddedToken("\n\n", normalized=False)])
    return backend


NAMES = ("llama2", "phi3", "gemma", "mistral", "unigram")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ids_and_text_are_those_of_the_library(name, merged, likely, text, tmp_path: Path):
    made(name, merged, likely).save(str(tmp_path / "tokenizer.json"))
    # Reading a file rounds the scores of a Unigram, which decides between equal ones.
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer = data.load_tokenizer(tmp_path / "tokenizer.json")
    backend.encode_special_tokens = True
    sizes, front = np.array(tokenizer.token_bytes()), "" if name == "gemma" else " "
    assert tokenizer.prefix == front
    for source in (text, ENDS, "a", "", f"x{ENDS}{ENDS}"):
        ids = tokenizer.encode(source)
        if name != "unigram" or "<s>" not in source:  # which the library takes for the token
            assert ids == backend.encode(source, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == source
        assert backend.decode(ids) == source or name == "unigram"
        assert sizes[ids].sum() == len((front + source if source else "").encode())
        stream = data.StreamDecoder(tokenizer, begins_text=True)
        streamed = "".join(stream.push(token) for token in ids[-1000:])
        assert source.endswith(streamed)
    assert tokenizer.begin_of_text == 1
    assert tokenizer.end_of_text == 2


def test_a_vocabulary_without_bytes_is_refused(tmp_path: Path):
    backend = tokenizers.Tokenizer(models.BPE({"<unk>": 0, "</s>": 1}, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(data.DataError, match="loses text: its vocabulary, which has no token"):
        data.load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.slow
def test_spans_begin_behind_the_space_in_front(merged, likely, tmp_path: Path):
    """The characters of a document that count are those of its tokens."""
    made("llama2", merged, likely).save(str(tmp_path / "tokenizer.json"))
    tokenizer = data.load_tokenizer(tmp_path / "tokenizer.json")
    found = documents.MarkedText("def f(x): return 7", [[10, 18]]).encode(tokenizer)
    assert found.counted is not None
    counted = [token for token, counts in zip(found.tokens, found.counted, strict=True) if counts]
    assert "return 7".endswith(tokenizer.decode(map(int, counted)).lstrip(" :"))
