"""Reading a tokenizer.json, our own or anybody's."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from fidgpt.data.errors import DataError
from fidgpt.data.tokenizers.byte_level import SETTINGS_FILE, ByteLevelTokenizer, check_byte_level
from fidgpt.data.tokenizers.byte_tokenizer import read_byte_tokenizer
from fidgpt.data.tokenizers.tokenizer import END_OF_TEXT, Tokenizer

_END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")


class TokenizerFile:
    """A byte-level `tokenizer.json`, such as GPT-2's, Llama 3's or one that fidgpt saved.

    The end of text is `end_of_text`, else the `eos_token` of a `tokenizer_config.json` beside the
    file, else a token with a usual name.
    """

    sample_bytes = 0

    def __init__(self, path: str | Path, *, end_of_text: str | None = None) -> None:
        self.path = path
        self.end_of_text = end_of_text

    def identity(self) -> str:
        """A hash of the file, and the name of the end of text."""
        path = Path(self.path).expanduser()
        digest = hashlib.sha256(_read(path)[0].encode()).hexdigest()
        return f"file sha256={digest} end_of_text={self.end_of_text or _name_beside(path)}"

    def end_of_text_id(self) -> int:
        """As the file says."""
        return self.build(()).end_of_text

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """Load the file."""
        return load_tokenizer(self.path, end_of_text=self.end_of_text)


def load_tokenizer(path: str | Path, *, end_of_text: str | None = None) -> Tokenizer:
    """Read what a tokenizer's `save`, or another program, wrote as tokenizer.json.

    Raises DataError if the file is missing, is not a byte-level tokenizer, or has no end of text.
    """
    path = Path(path).expanduser()
    text, content = _read(path)
    if (of_bytes := read_byte_tokenizer(content)) is not None:
        return of_bytes
    check_byte_level(content, path=path)
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception for every mistake in a file
        raise _not_a_tokenizer(path, str(error)) from error
    name = end_of_text or _name_beside(path)
    return ByteLevelTokenizer(backend, end_of_text=_end_of_text(backend, name=name, path=path))


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a tokenizer.json, and what it says."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DataError(
            f"Cannot read the tokenizer {path}: {reason}.\n"
            "Give the path of a tokenizer.json, or train one with BPETokenizer(vocab_size=...)."
        ) from error
    try:
        content: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise _not_a_tokenizer(path, str(error)) from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise _not_a_tokenizer(path, "it has no 'model'")
    return text, content


def _not_a_tokenizer(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} is not a tokenizer.json of the tokenizers library: {reason}.\n"
        "Give the tokenizer.json of a model, or train one with BPETokenizer(vocab_size=...)."
    )


def _name_beside(path: Path) -> str | None:
    """The end of text that a tokenizer_config.json beside the file names, if there is one."""
    try:
        settings: Any = json.loads(path.with_name(SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    name = settings.get("eos_token") if isinstance(settings, dict) else None
    name = name.get("content") if isinstance(name, dict) else name
    return name if isinstance(name, str) else None


def _end_of_text(backend: tokenizers.Tokenizer, *, name: str | None, path: Path) -> str:
    for candidate in _END_OF_TEXT_NAMES if name is None else (name,):
        if backend.token_to_id(candidate) is not None:
            return candidate
    special = [added.content for added in backend.get_added_tokens_decoder().values()]
    wanted = f"no token {name!r}" if name is not None else "no end-of-text token by a usual name"
    raise DataError(
        f"{path} has {wanted}; its special tokens are {', '.join(special[:12]) or 'none'}.\n"
        'Name the one that ends a document: TokenizerFile(path, end_of_text="...").'
    )
