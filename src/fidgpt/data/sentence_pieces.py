"""The bytes of tokens in which a letter stands for a space, as in SentencePiece's models.

Characters without a token of their own are bytes by name, such as `<0xE2>` (Kudo and Richardson,
2018, arXiv:1808.06226). Such are the tokenizers of Llama 2, Mistral, Gemma and Phi 3.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

SPACE = "\u2581"  # the letter
_NEVER = -1e4  # the logarithm of a probability
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def has_space_letter(backend: tokenizers.Tokenizer) -> bool:
    """Return whether the decoder of a tokenizer turns the letter into a space."""
    decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
    return any(
        (part.get("type") == "Metaspace" and part.get("replacement") == SPACE)
        or (part.get("pattern") == {"String": SPACE} and part.get("content") == " ")
        for part in parts_of(decoder, "decoders")
    )


def parts_of(component: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the components of a tokenizer.json that one consists of, which it lists by `key`."""
    if isinstance(component, dict):
        if isinstance(parts := component.get(key), list):
            for part in parts:
                yield from parts_of(part, key)
        else:
            yield component


def piece_bytes(token: str) -> bytes:
    """Return the bytes that a token stands for."""
    if match := _BYTE.fullmatch(token):
        return bytes([int(match[1], base=16)])
    return token.replace(SPACE, " ").encode()


def without_stripping(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json in which added tokens that strip spaces beside them are special.

    Special tokens are not looked for in texts, where their spaces would be lost.
    """
    added = [
        token | {"special": True} if token.get("lstrip") or token.get("rstrip") else token
        for token in content.get("added_tokens") or ()
    ]
    return {**content, "added_tokens": added}


def spelling(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer | None:
    """Return the same Unigram, in which a text that spells a special token has ordinary ones.

    None for other models, which have no such texts. With its other scores, it is not always the
    same for other texts: segments that are equally likely are many, and rounding chooses.
    """
    content = json.loads(backend.to_str())
    if content["model"]["type"] != "Unigram":
        return None
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    vocabulary = content["model"]["vocab"]
    scores = [(token, _NEVER if token in special else score) for token, score in vocabulary]
    content["model"]["vocab"] = scores
    return tokenizers.Tokenizer.from_str(json.dumps(content))
