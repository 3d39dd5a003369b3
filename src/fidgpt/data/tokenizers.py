"""Tokenizers."""

import codecs
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from fidgpt.data.encoding_process import disable_special_tokens, encode_batch
from fidgpt.data.errors import DataError

END_OF_TEXT = "<|endoftext|>"


@runtime_checkable
class Tokenizer(Protocol):
    """A tokenizer that exists: text to token ids and back, exactly."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        ...

    @property
    def end_of_text(self) -> int:
        """The id that follows every document."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end of text."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text; may be called from several threads at once."""
        ...

    def token_values(self) -> list[bytes]:
        """The bytes that each id stands for; special tokens stand for none."""
        ...

    def special_ids(self) -> dict[str, int]:
        """The ids of the special tokens, that of the end of text among them, by their names."""
        ...

    def token_bytes(self) -> list[int]:
        """The number of UTF-8 bytes that each id stands for; 0 for special tokens."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; bytes that are no valid UTF-8 become U+FFFD."""
        ...

    def save(self, path: str | Path) -> None:
        """Write a `tokenizer.json` that `load_tokenizer` and the `tokenizers` library read."""
        ...


@runtime_checkable
class TokenizerSpec(Protocol):
    """A tokenizer that is still to be trained, loaded or taken as it is."""

    @property
    def sample_bytes(self) -> int:
        """How much text `build` wants to see; 0 when it needs none."""
        ...

    def identity(self) -> str:
        """A text that changes whenever `build` would give something else for the same sample."""
        ...

    def end_of_text_id(self) -> int:
        """The id that will follow every document."""
        ...

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """The tokenizer itself, given a sample of the training documents."""
        ...


def end_of_text(tokenizer: TokenizerSpec) -> int:
    """The id that parts documents, for parts of a model that ask for it before there is text.

    Raises:
      DataError: the tokenizer is in a file that cannot be read.
    """
    return tokenizer.end_of_text_id()


class StreamDecoder:
    """Text from one token at a time, held back while a character's bytes are incomplete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._values = tokenizer.token_values()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that this token completes, perhaps none."""
        return self._decoder.decode(self._values[token])

    def finish(self) -> str:
        """What was still held back, as U+FFFD; the decoder then starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def check_vocab_size(tokenizer: Tokenizer, *, vocab_size: int) -> None:
    """Raise DataError unless a table of `vocab_size` rows has a row for every token."""
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"The tokenizer has {tokenizer.vocab_size} tokens, and the model's table has "
            f"vocab_size={vocab_size} rows.\nSet vocab_size to at least {tokenizer.vocab_size}, "
            "or choose a tokenizer with fewer tokens."
        )


# Hugging Face's name for the file beside a tokenizer.json that says which token ends a text.
SETTINGS_FILE = "tokenizer_config.json"


@functools.cache
def byte_letters() -> tuple[str, ...]:
    """The printable character by which a byte-level tokenizer.json writes each byte value.

    Bytes that print in Latin-1 stand for themselves; the others are numbered from U+0100 on.
    Source: the byte-level BPE of Radford et al. 2019.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(value if value in printable else next(spare)) for value in range(256))


class ByteLevelTokenizer:
    """A trained or loaded byte-level tokenizer; `BPETokenizer` and `TokenizerFile` build it."""

    def __init__(self, backend: tokenizers.Tokenizer, *, end_of_text: str) -> None:
        disable_special_tokens(backend)
        self._backend = backend
        self._values = _token_values(backend)
        number = backend.token_to_id(end_of_text)
        if number is None:
            raise DataError(f"The tokenizer has no token {end_of_text!r} to end a document.")
        self.end_of_text = number
        self._end_of_text_name = end_of_text

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return len(self._values)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end of text."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text; the work leaves Python's lock, so threads run at once."""
        return [np.frombuffer(ids, np.uint32) for ids in encode_batch(self._backend, texts)]

    def token_values(self) -> list[bytes]:
        """The bytes that each id stands for; special tokens stand for none."""
        return list(self._values)

    def special_ids(self) -> dict[str, int]:
        """The ids of the special tokens, by their names."""
        added = self._backend.get_added_tokens_decoder().items()
        return {token.content: number for number, token in added if token.special}

    def token_bytes(self) -> list[int]:
        """The number of UTF-8 bytes that each id stands for; 0 for special tokens."""
        return [len(value) for value in self._values]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; bytes that are no valid UTF-8 become U+FFFD."""
        return b"".join(self._values[token] for token in ids).decode(errors="replace")

    def save(self, path: str | Path) -> None:
        """Write the library's own tokenizer.json, and the end of text beside it if unusual."""
        path = Path(path)
        path.write_text(self._backend.to_str(pretty=True), encoding="utf-8")
        if self._end_of_text_name != END_OF_TEXT:
            settings = json.dumps({"eos_token": self._end_of_text_name}, indent=2)
            path.with_name(SETTINGS_FILE).write_text(settings + "\n", encoding="utf-8")


def check_byte_level(content: dict[str, Any], *, path: Path) -> None:
    """Raise DataError unless this tokenizer.json gives text back exactly, byte by byte."""
    decoder = content.get("decoder") or {}
    parts = [decoder, *(decoder.get("decoders") or [])]
    if not any(part.get("type") == "ByteLevel" for part in parts):
        raise DataError(
            f"{path} has the decoder {decoder.get('type', 'none')!r}, and fidgpt needs a "
            "byte-level tokenizer (as of GPT-2, Llama 3 or Qwen), whose tokens spell every text "
            "exactly.\nChoose another tokenizer.json, or train one with BPETokenizer(vocab_size)."
        )


def _token_values(backend: tokenizers.Tokenizer) -> list[bytes]:
    values_by_letter = {letter: value for value, letter in enumerate(byte_letters())}
    vocabulary = backend.get_vocab(with_added_tokens=True)
    values = [b""] * (max(vocabulary.values()) + 1)
    for token, number in backend.get_vocab(with_added_tokens=False).items():
        if all(letter in values_by_letter for letter in token):
            values[number] = bytes(values_by_letter[letter] for letter in token)
    for number, added in backend.get_added_tokens_decoder().items():
        values[number] = b"" if added.special else added.content.encode()
    return values


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8, and 256 is the end of text.

    Args:
      special_tokens: names of further tokens that no text holds; they have the ids from 257 on.
    """

    sample_bytes = 0
    end_of_text = 256

    def __init__(self, *, special_tokens: Sequence[str] = ()) -> None:
        self.special_tokens = tuple(special_tokens)
        self.vocab_size = 257 + len(self.special_tokens)

    def identity(self) -> str:
        """Always the same, but for further tokens."""
        return " ".join(["bytes", *self.special_tokens])

    def end_of_text_id(self) -> int:
        """The id after those of the bytes."""
        return self.end_of_text

    def build(self, sample: Sequence[str]) -> "ByteTokenizer":
        """Itself: there is nothing to learn."""
        return self

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of the text."""
        return list(text.encode("utf-8"))

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The UTF-8 bytes of each text."""
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]

    def token_values(self) -> list[bytes]:
        """Each byte, and nothing for special tokens."""
        return [bytes([value]) for value in range(256)] + [b""] * (self.vocab_size - 256)

    def special_ids(self) -> dict[str, int]:
        """The ids from 256 on, by their names."""
        names = (END_OF_TEXT, *self.special_tokens)
        return {name: number for number, name in enumerate(names, start=256)}

    def token_bytes(self) -> list[int]:
        """1 for each byte, 0 for special tokens."""
        return [1] * 256 + [0] * (self.vocab_size - 256)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these bytes; what is no valid UTF-8 becomes U+FFFD."""
        return bytes(value for value in ids if value < self.end_of_text).decode(errors="replace")

    def save(self, path: str | Path) -> None:
        """Write it as a byte-level BPE without merges, which other programs can read too."""
        backend = tokenizers.Tokenizer(models.BPE(vocab=_vocabulary(), merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        names = [END_OF_TEXT, *self.special_tokens]
        backend.add_special_tokens(
            [AddedToken(name, special=True, normalized=False) for name in names]
        )
        Path(path).write_text(backend.to_str(pretty=True), encoding="utf-8")


def read_byte_tokenizer(content: dict[str, Any]) -> ByteTokenizer | None:
    """What `save` wrote as the tokenizer.json that says this; None where it did not."""
    model = content["model"]
    if model.get("merges") != [] or model.get("vocab") != _vocabulary():
        return None
    added = sorted((token["id"], token["content"]) for token in content.get("added_tokens", ()))
    return ByteTokenizer(special_tokens=[name for number, name in added if number > 256])


def _vocabulary() -> dict[str, int]:
    letters = {letter: value for value, letter in enumerate(byte_letters())}
    return {**letters, END_OF_TEXT: 256}


# Where text is cut before merging. In order: a word with the one sign before it (" word", ".join",
# "_name"); up to three digits; signs with the line end and indentation after them (":\n    ");
# a line end with the next line's indentation; other space, leaving one for the next word.
# Measured on the standard library with 4,096 tokens: 3.70 bytes per token, where the split of
# GPT-2 gives 3.48 and that of cl100k 3.47, at the same speed.
_PATTERN = (
    r"[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+(?:[\r\n]+[ \t]*)?"
    r"|[\r\n]+[ \t]*"
    r"|\s+(?!\S)|\s+"
)


_MOST_TOKENS = 10_000_000  # the library makes room for all of them before it has read any text


class BPETokenizer:
    """Byte-pair encoding over bytes, learned from the corpus (Sennrich et al. 2016).

    `vocab_size` counts the 256 bytes and the end of text, so it is at least 257; a small corpus
    may yield fewer tokens. Merges are learned from at most `sample_bytes` of the training
    documents: of the standard library, a quarter gives 1.6% longer texts than the whole.
    `special_tokens` are names of further tokens that no text holds, such as those of fill-in-the-
    middle; `vocab_size` counts them too.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        special_tokens: Sequence[str] = (),
        sample_bytes: int = 32 * 1024 * 1024,
    ) -> None:
        self.check_arguments(
            vocab_size=vocab_size, special_tokens=special_tokens, sample_bytes=sample_bytes
        )
        self.vocab_size = vocab_size
        self.special_tokens = tuple(special_tokens)
        self.sample_bytes = sample_bytes

    @staticmethod
    def check_arguments(
        *, vocab_size: int, special_tokens: Sequence[str], sample_bytes: int
    ) -> None:
        """Raises DataError where a vocabulary has no room or too much, or nothing to learn from."""
        least = 257 + len(special_tokens)
        if vocab_size < least:
            further = f" and {len(special_tokens)} special tokens" if special_tokens else ""
            raise DataError(
                f"vocab_size={vocab_size} has no room for the 256 bytes and the end of text"
                f"{further}; set vocab_size to {least} or more."
            )
        if vocab_size > _MOST_TOKENS:
            raise DataError(
                f"vocab_size={vocab_size} is more than any text has pairs for; set vocab_size to "
                f"{_MOST_TOKENS} or less."
            )
        if sample_bytes < 1:
            raise DataError(f"sample_bytes={sample_bytes} leaves no text to learn from.")

    def identity(self) -> str:
        """The sizes and the pattern."""
        special = f" special={self.special_tokens}" if self.special_tokens else ""
        sizes = f"vocab_size={self.vocab_size} sample={self.sample_bytes}"
        return f"bpe {sizes} split={_PATTERN}{special}"

    def end_of_text_id(self) -> int:
        """The first id of all: special tokens come before bytes and merges."""
        return 0

    def build(self, sample: Sequence[str]) -> ByteLevelTokenizer:
        """Learn the merges; the same sample always gives the same tokenizer."""
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            min_frequency=2,
            special_tokens=[END_OF_TEXT, *self.special_tokens],
            initial_alphabet=list(byte_letters()),
            show_progress=False,
        )
        backend.train_from_iterator(sample, trainer, length=len(sample))
        return ByteLevelTokenizer(backend, end_of_text=END_OF_TEXT)


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
