"""Tokenizers: bytes, trained byte-level BPE, and tokenizers read from files."""

import codecs
import functools
import hashlib
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from fidgpt.data.errors import DataError
from fidgpt.data.lossless import change_of
from fidgpt.data.sentence_pieces import (
    has_space_letter,
    parts_of,
    piece_bytes,
    spelling,
    without_stripping,
)
from fidgpt.files import parse_json, read_bytes, read_json
from fidgpt.ranges import require_size

__all__ = [
    "BPETokenizer",
    "ByteTokenizer",
    "ChatSettings",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerFile",
    "TokenizerSpec",
    "begin_of_text",
    "check_vocab_size",
    "end_of_text",
    "load_tokenizer",
    "with_begin",
]


END_OF_TEXT = "<|endoftext|>"
_BYTES = [bytes([value]) for value in range(256)]


class ChatSettings(NamedTuple):
    """How a tokenizer writes conversations.

    Attributes:
      template: a Jinja template, as in `chat_template` of a tokenizer_config.json.
      tokens: names of special tokens that the template uses, such as `eos_token`.
    """

    template: str
    tokens: Mapping[str, str] = {}


# Hugging Face's files beside a tokenizer.json: names of special tokens, and the chat template.
SETTINGS_FILE, _TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
TOKEN_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token")
_END_KEY = "end_of_text"  # what follows a document, where `eos_token` ends a turn
_KEPT = (*TOKEN_KEYS, "add_bos_token", "chat_template", _END_KEY)


@functools.cache
def byte_letters() -> tuple[str, ...]:
    """Return the printable character that stands for each byte in a byte-level tokenizer.json.

    Bytes that are printable in Latin-1 stand for themselves; the others are numbered from U+0100 on
    (the byte-level BPE of Radford et al., 2019).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(value if value in printable else next(spare)) for value in range(256))


class Tokenizer:
    """Converts text to token ids and back, losslessly, by one of the `tokenizers` library.

    Args:
      backend: of the library; it is changed, so that it parses no special tokens in texts.
      end_of_text: name of the end-of-text token, which it has.
      settings: the content of a tokenizer_config.json.

    Attributes:
      end_of_text: id of the end-of-text token, which follows every document.
      chat: how conversations become text; None if the tokenizer does not say.
      prefix: put in front of a text before it is encoded; no part of the text.
      puts_begin: whether a prompt begins with the token in front of documents; where it does not,
        documents are trained that way alone.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        end_of_text: str,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._values = _token_values(backend)
        _disable_special_tokens(backend)
        if getattr(backend.model, "dropout", None):  # of merges at random, in training of theirs
            backend.model.dropout = None
        self._backend = backend
        number = backend.token_to_id(end_of_text)
        assert number is not None  # who builds it has looked
        self.end_of_text = number
        self._end_of_text_name = end_of_text
        self._settings = dict(settings or {})
        is_bytes = self._values[:256] == _BYTES and not any(self._values[256:])
        self._is_bytes = is_bytes and backend.normalizer is None  # no merge: as numpy reads a text
        self._spelling = spelling(backend) if has_space_letter(backend) else None
        if self._spelling is not None:
            _disable_special_tokens(self._spelling)
        # One that transformers wrote does as its settings say, or its post-processor.
        says = self._settings.get("add_bos_token", "tokenizer_class" not in self._settings)
        self.puts_begin = bool(says) or backend.encode("").ids[:1] == [self.begin_of_text]
        self.prefix = ""
        if has_space_letter(backend):
            begin = b"".join(self._values[token] for token in self.encode("a"))
            self.prefix = begin.decode(errors="replace").removesuffix("a")
        self.chat: ChatSettings | None = None
        template = self._settings.get("chat_template")
        if isinstance(template, str):
            names = {key: _name_of(self._settings.get(key)) for key in TOKEN_KEYS}
            if names["bos_token"] == end_of_text:  # which is in front of conversations already
                del names["bos_token"]
            if names["eos_token"] == end_of_text and "eos_token" not in template:
                del names["eos_token"]  # `save` names it for other systems
            self.chat = ChatSettings(template, {key: name for key, name in names.items() if name})

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return len(self._values)

    @functools.cached_property
    def begin_of_text(self) -> int | None:
        """The id of the token in front of every document: `end_of_text`, another, or None."""
        name = _name_of(self._settings.get("bos_token"))
        begin = None if name is None else self._backend.token_to_id(name)
        added = self._backend.encode("").ids
        if name is None and added and added[0] != self.end_of_text:
            return added[0]
        if begin is None or begin == self.end_of_text:
            is_said = {"bos_token", "eos_token"} & self._settings.keys()
            return self.end_of_text if begin is not None or not is_said else None
        return begin if self._settings.get("add_bos_token", added[:1] == [begin]) else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without an end-of-text token."""
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return the ids of each text; thread-safe."""
        if self._is_bytes:
            return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]
        return [np.frombuffer(self._encode(text), np.uint32) for text in texts]

    def _encode(self, text: str) -> "array[int]":
        ids = _ids_of(self._backend, text)
        if self._spelling is not None and any(not self._values[token] for token in ids):
            return _ids_of(self._spelling, text)
        return ids

    def normalize(self, text: str) -> str:
        """Return the text as its tokens spell it."""
        if has_space_letter(self._backend):
            values = (self._values[token] for token in self.encode(text))
            return b"".join(values).decode(errors="replace")
        normalizer = self._backend.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def token_values(self) -> list[bytes]:
        """Return the bytes of each token; none for special tokens."""
        return list(self._values)

    def special_ids(self) -> dict[str, int]:
        """Return the ids of the special tokens by name, including the end-of-text token."""
        added = self._backend.get_added_tokens_decoder().items()
        return {token.content: number for number, token in added if token.special}

    def token_bytes(self) -> list[int]:
        """Return the number of UTF-8 bytes of each token; 0 for special tokens."""
        return [len(value) for value in self._values]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of a sequence of ids; invalid UTF-8 becomes U+FFFD."""
        text = b"".join(self._values[token] for token in ids).decode(errors="replace")
        return text.removeprefix(self.prefix)

    def as_json(self) -> str:
        """Return the content of a `tokenizer.json`."""
        return self._backend.to_str(pretty=True)

    def save(self, path: str | Path) -> None:
        """Write a `tokenizer.json` that `load_tokenizer` and the `tokenizers` library can read.

        It gets a tokenizer_config.json beside it if it is unusual.
        """
        path = Path(path)
        path.write_text(self.as_json(), encoding="utf-8")
        begins = self.begin_of_text == self.end_of_text
        is_usual = self._end_of_text_name == END_OF_TEXT and begins and self.puts_begin
        if self.chat is not None or not is_usual:
            kept = {key: self._settings[key] for key in _KEPT if key in self._settings}
            own: dict[str, Any] = {"bos_token": self._end_of_text_name if begins else None}
            if not self.puts_begin:
                own["add_bos_token"] = False
            written = {"eos_token": self._end_of_text_name, **own, **kept}
            text = json.dumps(written, indent=2) + "\n"
            path.with_name(SETTINGS_FILE).write_text(text, encoding="utf-8")

    def for_chat(self, template: str, *, end_of_text: str) -> "Tokenizer":
        """Return one that writes conversations by a template, with this token after each."""
        settings = {**self._settings, "chat_template": template, _END_KEY: end_of_text}
        return Tokenizer(self._backend, end_of_text=end_of_text, settings=settings)


def _disable_special_tokens(backend: tokenizers.Tokenizer) -> None:
    """Disable padding, truncation and the parsing of special tokens."""
    # Text that spells a special token is encoded as text: a document cannot end itself.
    backend.encode_special_tokens = True
    backend.no_padding()
    backend.no_truncation()


def _ids_of(backend: tokenizers.Tokenizer, text: str) -> "array[int]":
    """Return the ids of a text; the calling thread encodes without the GIL."""
    # A batch of one, since a larger one goes to the library's own threads.
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    return array("I", encoding.ids)  # three times as fast as numpy's conversion of a list


# A corpus loads one file to prepare it, to write it and to open it: the last vocabulary is kept.
_from_str = functools.lru_cache(maxsize=1)(tokenizers.Tokenizer.from_str)


@functools.lru_cache(maxsize=1)
def _token_values(backend: tokenizers.Tokenizer) -> list[bytes]:
    has_pieces = has_space_letter(backend)
    bytes_of = piece_bytes if has_pieces else _letter_bytes
    vocabulary = backend.get_vocab(with_added_tokens=True)
    values = [b""] * (max(vocabulary.values()) + 1)
    for token, number in vocabulary.items():
        values[number] = bytes_of(token)
    for number, added in backend.get_added_tokens_decoder().items():
        content = piece_bytes(added.content) if has_pieces else added.content.encode()
        values[number] = b"" if added.special else content
    return values


def _letter_bytes(token: str) -> bytes:
    """Return the bytes of a token of byte letters; none where it has others, or was added."""
    try:
        return bytes(map(_values_by_letter().__getitem__, token))
    except KeyError:
        return b""


@functools.cache
def _values_by_letter() -> dict[str, int]:
    return {letter: value for value, letter in enumerate(byte_letters())}


@runtime_checkable
class TokenizerSpec(Protocol):
    """Specification of a tokenizer, which `build` trains or loads."""

    @property
    def sample_bytes(self) -> int:
        """Size in bytes of the sample that `build` needs for training; 0 for none."""
        ...

    def identity(self) -> str:
        """Return a string that changes whenever the tokenizer built from the same sample would."""
        ...

    def end_of_text_id(self) -> int:
        """Return the id of the end-of-text token."""
        ...

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """Return the tokenizer, given a sample of the training documents."""
        ...


def end_of_text(tokenizer: TokenizerSpec) -> int:
    """Return the end-of-text id, for modules that are built before the text is read.

    Raises:
      DataError: the tokenizer file cannot be read.
    """
    return tokenizer.end_of_text_id()


def begin_of_text(tokenizer: TokenizerSpec) -> int | None:
    """Return the id of the token in front of documents, `end_of_text` if that is it, or None."""
    find = getattr(tokenizer, "begin_of_text_id", tokenizer.end_of_text_id)
    return find()


class StreamDecoder:
    """Decodes one token at a time, holding back incomplete characters.

    Args:
      tokenizer: has the bytes of tokens.
      begins_text: whether the first token begins a text, which has the tokenizer's prefix in front.
    """

    def __init__(self, tokenizer: Tokenizer, *, begins_text: bool = False) -> None:
        self._values = tokenizer.token_values()
        self._prefix = tokenizer.prefix if begins_text else ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Return the characters that this token completes."""
        text = self._decoder.decode(self._values[token])
        if not text or not self._prefix:
            return text
        prefix, self._prefix = self._prefix, ""
        return text.removeprefix(prefix)

    def finish(self) -> str:
        """Return what was held back, as U+FFFD, and reset the decoder."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def check_vocab_size(tokenizer: Tokenizer, *, vocab_size: int) -> None:
    """Raise DataError if the tokenizer has more than `vocab_size` tokens."""
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"The tokenizer has {tokenizer.vocab_size} tokens, but the model's embedding has only "
            f"vocab_size={vocab_size}.\nSet vocab_size to at least {tokenizer.vocab_size}, "
            "or choose a tokenizer with fewer tokens."
        )


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes as ids 0 to 255, and the end of text as 256.

    Args:
      special_tokens: names of further special tokens, whose ids start at 257.
    """

    sample_bytes = 0

    def __init__(self, *, special_tokens: Sequence[str] = ()) -> None:
        self.special_tokens = tuple(special_tokens)
        vocabulary = {**_values_by_letter(), END_OF_TEXT: 256}
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        names = (END_OF_TEXT, *self.special_tokens)
        special = [AddedToken(name, special=True, normalized=False) for name in names]
        backend.add_special_tokens(special)
        super().__init__(backend, end_of_text=END_OF_TEXT)

    def identity(self) -> str:
        return " ".join(["bytes", *self.special_tokens])

    def end_of_text_id(self) -> int:
        return self.end_of_text

    def build(self, sample: Sequence[str]) -> "ByteTokenizer":
        """Return `self`: there is nothing to train."""
        return self


# How text is split before merging. In order: a word with one character before it (" word", ".join",
# "_name"); up to three digits; punctuation with the line end and indentation after it (":\n    ");
# a line end with the next line's indentation; other whitespace, except one before a word. On the
# standard library with 4,096 tokens this gives 3.70 bytes per token; the pattern of GPT-2 gives
# 3.48 and that of cl100k 3.47, at the same speed.
_PATTERN = (
    r"[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+(?:[\r\n]+[ \t]*)?"
    r"|[\r\n]+[ \t]*"
    r"|\s+(?!\S)|\s+"
)


class BPETokenizer:
    """Byte-pair encoding over bytes, trained on the corpus (Sennrich et al. 2016).

    A small corpus may yield fewer tokens than `vocab_size`. Trained on a quarter of the standard
    library, encodings are 1.6% longer than trained on all of it.

    Args:
      vocab_size: number of tokens, including the 256 bytes and the special tokens.
      special_tokens: names of special tokens besides the end of text, such as the tokens of
        fill-in-the-middle.
      sample_bytes: maximum size of the sample from which merges are learned.

    Raises:
      ValueError: a size is out of range.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        special_tokens: Sequence[str] = (),
        sample_bytes: int = 32 * 1024 * 1024,
    ) -> None:
        least = 257 + len(special_tokens)
        if vocab_size < least:
            raise ValueError(
                f"{vocab_size=} must be {least} or more: 256 bytes, the end of text and "
                f"{len(special_tokens)} special tokens."
            )
        require_size(sample_bytes=sample_bytes)
        self.vocab_size = vocab_size
        self.special_tokens = tuple(special_tokens)
        self.sample_bytes = sample_bytes

    def identity(self) -> str:
        """Return the sizes, the split pattern and the special tokens."""
        special = f" special={self.special_tokens}" if self.special_tokens else ""
        sizes = f"vocab_size={self.vocab_size} sample={self.sample_bytes}"
        return f"bpe {sizes} split={_PATTERN}{special}"

    def end_of_text_id(self) -> int:
        """Return the first id: special tokens come before bytes and merges."""
        return 0

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """Learn the merges, deterministically."""
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
        return Tokenizer(backend, end_of_text=END_OF_TEXT)


END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")


class TokenizerFile:
    """A `tokenizer.json` that loses no text, such as Llama 3's, Gemma's or one that fidgpt saved.

    It is byte-level, or has a letter for the space and tokens for bytes (`byte_fallback`). A space
    that the tokenizer puts in front of a text is no part of it; some do so only where there is
    none, and the first space of a text is lost.

    The end-of-text token is `end_of_text` if given, else the `eos_token` of a
    `tokenizer_config.json` beside the file, else a token with a usual name such as `</s>`.
    Documents begin with the `bos_token` there if the tokenizer puts it in front of texts, and with
    nothing if it does not. Where none is named, or the end of text is both, that is in front.
    """

    sample_bytes = 0

    def __init__(self, path: str | Path, *, end_of_text: str | None = None) -> None:
        self.path = path
        self.end_of_text = end_of_text

    def require_present(self) -> None:
        """Raise DataError if the file cannot be loaded."""
        self.build(())

    def identity(self) -> str:
        """Return a hash of the file, and the name of the end-of-text token."""
        path = Path(self.path).expanduser()
        digest = hashlib.sha256(_read(path)[0].encode()).hexdigest()
        settings = _settings_beside(path)
        name = self.end_of_text or _end_beside(settings)
        begin = self.begin_of_text_id() if settings else self.end_of_text_id()
        is_usual = begin == self.end_of_text_id()
        return f"file sha256={digest} end_of_text={name}" + ("" if is_usual else f" begin={begin}")

    def end_of_text_id(self) -> int:
        """Return the id of the file's end-of-text token."""
        return self.build(()).end_of_text

    def begin_of_text_id(self) -> int | None:
        """Return the id of the token that the file puts in front of documents."""
        return self.build(()).begin_of_text

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """Load the file."""
        return load_tokenizer(self.path, end_of_text=self.end_of_text)


def load_tokenizer(path: str | Path, *, end_of_text: str | None = None) -> Tokenizer:
    """Load a tokenizer.json.

    Raises:
      DataError: the file is missing, is not a byte-level tokenizer, changes texts, or has no end of
        text.
    """
    path = Path(path).expanduser()
    text, content = _read(path)
    try:
        backend = _from_str(text)
        if has_space_letter(backend):
            backend = _from_str(json.dumps(without_stripping(content)))
    except Exception as error:  # the library raises plain Exception
        raise _unreadable(path, str(error)) from error
    types = [str(part.get("type")) for part in parts_of(content.get("decoder"), "decoders")]
    if "ByteLevel" not in types and not has_space_letter(backend):
        raise DataError(
            f"{path} has the decoder {types[0] if types else 'none'!r}, but fidgpt needs a "
            "byte-level tokenizer (as in GPT-2, Llama 3 or Qwen), or one with bytes for what has "
            "no token (as in Llama 2 or Gemma), which encodes any text losslessly.\nUse another "
            "tokenizer.json, or train one with BPETokenizer(vocab_size)."
        )
    settings = _settings_beside(path)
    name = end_of_text or _end_beside(settings)
    for candidate in END_OF_TEXT_NAMES if name is None else (name,):
        if backend.token_to_id(candidate) is not None:
            tokenizer = Tokenizer(backend, end_of_text=candidate, settings=settings)
            values = tokenizer.token_values()
            if change := change_of(content, tokenizer.encode, values, prefix=tokenizer.prefix):
                raise DataError(
                    f"{path} loses text: {change}. Bits per byte, spans and texts that are written "
                    "would be of other texts than yours.\nUse a tokenizer that encodes any text "
                    "losslessly, or train one with BPETokenizer(vocab_size)."
                )
            return tokenizer
    special = [token.content for token in backend.get_added_tokens_decoder().values()]
    wanted = f"no token {name!r}" if name is not None else "no end-of-text token by a usual name"
    raise DataError(
        f"{path} has {wanted}; its special tokens are {', '.join(special[:12]) or 'none'}.\n"
        'Name the one that ends a document: TokenizerFile(path, end_of_text="...").'
    )


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a tokenizer.json, and the parsed object."""
    try:
        text = read_bytes(path).decode()
        content: Any = parse_json(text)
    except (OSError, ValueError) as error:
        raise _unreadable(path, getattr(error, "strerror", None) or str(error)) from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise _unreadable(path, "it has no 'model'")
    return text, content


def _unreadable(path: Path, reason: str) -> DataError:
    return DataError(
        f"Cannot read the tokenizer {path}: {reason}.\n"
        "Give the tokenizer.json of a model, or train one with BPETokenizer(vocab_size=...)."
    )


def _settings_beside(path: Path) -> dict[str, Any]:
    """Return what Hugging Face's files beside a tokenizer.json say, with one chat template."""
    settings = dict(read_json(path.with_name(SETTINGS_FILE)))
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in template}
        settings["chat_template"] = named.get("default")
    if (file := path.with_name(_TEMPLATE_FILE)).is_file():
        settings["chat_template"] = file.read_text(encoding="utf-8")
    if isinstance(text := settings.get("chat_template"), str):
        settings["chat_template"] = text.partition(_IN_FRONT)[2] or text
    return settings


_IN_FRONT = "{#- in front of every document #}"


def with_begin(chat: ChatSettings, token: str) -> str:
    """Return a chat template for other systems, which writes a token in front of documents.

    There `bos_token` is empty where it is here. `load_tokenizer` removes the addition.

    Args:
      chat: has the template.
      token: name of what no one else puts in front; empty for nothing.
    """
    if "bos_token" in chat.tokens or not (token or "bos_token" in chat.template):
        return chat.template
    front = f"{{{{- {json.dumps(token)} }}}}" if token else ""
    return f'{front}{{%- set bos_token = "" %}}{_IN_FRONT}{chat.template}'


def _end_beside(settings: Mapping[str, Any]) -> str | None:
    return _name_of(settings.get(_END_KEY)) or _name_of(settings.get("eos_token"))


def _name_of(token: Any) -> str | None:
    """Return the name of a special token in a tokenizer_config.json; None if it has none."""
    name = token.get("content") if isinstance(token, dict) else token
    return name if isinstance(name, str) else None
