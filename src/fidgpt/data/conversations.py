"""Conversations as documents, in which the assistant's tokens count in the loss."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.chat_templates import (
    CHAT_TEMPLATES,
    ChatTemplate,
    Message,
    chat_template,
    plain,
)
from fidgpt.data.documents import EncodedDocument, encode_marked
from fidgpt.data.errors import DataError
from fidgpt.data.messages import messages_of, naming_place, tools_of
from fidgpt.data.tokenizers import END_OF_TEXT_NAMES, Tokenizer, TokenizerSpec, begin_of_text
from fidgpt.files import read_bytes
from fidgpt.ranges import require_size

__all__ = ["ChatTokenizer", "Conversation", "Conversations"]

TrainOn = Literal["assistant", "last", "all"]
TooLong = Literal["shorten", "drop", "refuse"]
Broken = Literal["refuse", "drop"]


class ChatTokenizer:
    """A tokenizer that writes conversations by a chat template.

    The end of text, which follows every document, becomes a token that is in no conversation, where
    the tokenizer's own ends each turn: documents are told apart by it.

    Args:
      tokenizer: of the text.
      template: `chatml`, `llama3`, `nanochat`, or a file of Jinja; None for the tokenizer's own.
    """

    def __init__(self, tokenizer: TokenizerSpec, *, template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.template = template

    @property
    def sample_bytes(self) -> int:
        return self.tokenizer.sample_bytes

    def identity(self) -> str:
        """Return the identities of the tokenizer and of the template as one text."""
        text = self._text()
        if text is None:
            settings = self.tokenizer.build(()).chat
            text = "" if settings is None else str(settings)
        return f"{self.tokenizer.identity()} chat={hashlib.sha256(text.encode()).hexdigest()}"

    def end_of_text_id(self) -> int:
        """Return the id of the token that follows a document."""
        if self.sample_bytes:  # trained: it is no part of a template
            return self.tokenizer.end_of_text_id()
        return self.build(()).end_of_text

    def begin_of_text_id(self) -> int | None:
        """Return the id of the token in front of documents."""
        return begin_of_text(self.tokenizer) if self.sample_bytes else self.build(()).begin_of_text

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """Return the tokenizer with its template.

        Raises:
          DataError: it has none or lacks its special tokens, or all of them are in conversations.
        """
        tokenizer, text = self.tokenizer.build(sample), self._text()
        names = {number: name for name, number in tokenizer.special_ids().items()}
        own = names.get(tokenizer.end_of_text, END_OF_TEXT_NAMES[0])
        if text is not None:
            tokenizer = tokenizer.for_chat(text, end_of_text=own)
        template = ChatTemplate(tokenizer)
        free = template.free_token([own, *END_OF_TEXT_NAMES, *names.values()])
        if free is None:
            raise DataError(
                "All special tokens of the tokenizer are in its conversations, and none is left to "
                "follow them.\nUse a tokenizer with another one, such as <|endoftext|>."
            )
        assert tokenizer.chat is not None
        return tokenizer.for_chat(tokenizer.chat.template, end_of_text=free)

    def require_present(self) -> None:
        """Raise DataError if the template is a file that cannot be read."""
        self._text()

    def _text(self) -> str | None:
        """Return the template that was named; None for the tokenizer's own."""
        if self.template is None or self.template in CHAT_TEMPLATES:
            return CHAT_TEMPLATES.get(self.template or "")
        path = Path(self.template).expanduser()
        try:
            return read_bytes(path).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"template={self.template!r} is neither a file that can be read nor one of "
                f"{', '.join(CHAT_TEMPLATES)}."
            ) from error


@dataclass(eq=False)
class Conversations:
    """Rows that are conversations, in which the assistant's tokens count in the loss.

    A row has a list `messages` (OpenAI's) or `conversations` (ShareGPT's), an `instruction` with
    `input` and `output` (Alpaca's), or a question with an answer. The chat template of the
    tokenizer writes it. The end of the assistant's turns counts too, nothing else. An answer with
    `"weight": 0` does not count.

    Args:
      max_tokens: of a conversation, with the end of text behind it; None for any number.
      train_on: what counts: `assistant`, what the assistant says; `last`, its last answer; or
        `all` tokens.
      too_long: what becomes of a longer conversation: `shorten` cuts its end off, `drop` leaves it
        out, `refuse` is an error. A conversation without an answer in what is left is dropped.
      broken: what becomes of rows that hold no conversation, with an empty answer or with roles out
        of order: `refuse` is an error, `drop` leaves them out, and how many there were is printed.
    """

    _: KW_ONLY
    max_tokens: int | None = None
    train_on: TrainOn = "assistant"
    too_long: TooLong = "shorten"
    broken: Broken = "refuse"

    columns = None
    example = '{"messages": [{"role": "user", "content": "..."}, ...]}'

    def __post_init__(self) -> None:
        require_size(max_tokens=self.max_tokens)

    def identity(self) -> str:
        """Return the options."""
        return f"conversations {self.max_tokens} {self.train_on} {self.too_long} {self.broken}"

    def document(self, row: Any, *, place: str) -> "Conversation":
        """Return the conversation of a row.

        Raises:
          DataError: it holds none, an answer is empty, or roles are out of order.
        """
        row = row if isinstance(row, Mapping) else {}
        try:
            messages, tools = messages_of(row), tools_of(row)
        except DataError as error:
            if self.broken == "refuse":
                raise DataError(
                    f"{place} {error}; broken=drop leaves all such rows out."
                ) from error
            reason = re.split(r":| in message|, but", str(error))[0]
            return Conversation(messages=[], options=self, place=place, event=f"dropped: {reason}")
        return Conversation(messages=messages, options=self, place=place, tools=tools)


@dataclass(frozen=True, kw_only=True, eq=False)
class Conversation:
    """A conversation as a document.

    Attributes:
      messages: in OpenAI's form.
      options: how it becomes tokens.
      place: of its row, for messages.
      tools: that the assistant may call, for templates that list them.
      event: why it is left out; None if it is not.
    """

    messages: Sequence[Message]
    options: Conversations
    place: str
    tools: Any = None
    event: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(message["content"] for message in self.messages)

    def encode(self, tokenizer: Tokenizer) -> EncodedDocument:
        """Return the tokens of the rendered conversation, and which of them count.

        Raises:
          DataError: the template refuses it or does not tell where an answer is, all of its tokens
            count or none, it is too long, or it holds the token that follows documents.
        """
        if self.event is not None:
            return EncodedDocument(np.empty(0, dtype=np.uint32), event=self.event)
        with naming_place(self.place):
            tokens, counted, is_open = encoded(
                chat_template(tokenizer),
                self.messages,
                tokenizer,
                counts=self._counts,
                tools=self.tools,
            )
            if self.options.train_on == "all":
                counted = np.ones_like(counted)
            elif counted.all() or not counted.any():
                share = "all" if counted.all() else "none"
                raise DataError(f"has {len(counted)} tokens, of which {share} count in the loss")
            return self._fitting(tokens, counted, is_open)

    def _counts(self, turn: int) -> bool:
        """Return whether the answer in a message counts."""
        if not self.messages[turn].get("weight", 1):
            return False
        roles = [message["role"] for message in self.messages]
        return self.options.train_on != "last" or "assistant" not in roles[turn + 1 :]

    def _fitting(
        self, tokens: NDArray[np.uint32], counted: NDArray[np.bool_], is_open: bool
    ) -> EncodedDocument:
        """Return a conversation with at most the allowed number of tokens."""
        options, most = self.options, self.options.max_tokens
        # The end of text is the end of turn of an answer that has none.
        counts_end = is_open and bool(counted[-1])
        if most is None or len(tokens) < most:
            return EncodedDocument(tokens, counted, counts_end)
        if options.too_long == "refuse":
            raise DataError(
                f"has {len(tokens) + 1} tokens, more than max_tokens={most}: set a larger seq_len, "
                "or too_long=shorten or drop"
            )
        if options.too_long == "drop":
            return EncodedDocument(tokens[:0], event=f"dropped: longer than {most} tokens")
        tokens, counted = tokens[: most - 1], counted[: most - 1]
        if not counted.any():
            return EncodedDocument(
                tokens[:0], event=f"dropped: no answer within the first {most} tokens"
            )
        return EncodedDocument(tokens, counted, False, f"shortened to {most} tokens")


def encoded(
    template: ChatTemplate,
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    counts: Any,
    tools: Any = None,
) -> tuple[NDArray[np.uint32], NDArray[np.bool_], bool]:
    """Return the tokens of a conversation, which of them count, and whether its end is open.

    Args:
      template: of the tokenizer.
      messages: of the conversation.
      tokenizer: encodes it.
      counts: returns whether the answer in a message counts, by its index.
      tools: that the assistant may call.

    Raises:
      DataError: the template refuses them, or the end of text is in the conversation.
    """
    rendered = template.conversation(messages, tools=tools)
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    is_marked = np.zeros(len(rendered.text), dtype=np.int64)
    for turn, (begin, stop) in zip(turns, rendered.spans, strict=True):
        is_marked[begin:stop] = counts(turn)
    parts: list[tuple[NDArray[np.uint32], NDArray[np.bool_]]] = []
    for begin, text, number in template.pieces(rendered.text):
        marks = is_marked[begin : begin + len(text)]
        if number is None:
            parts.append(encode_marked(*plain(text, marks), tokenizer))
        else:
            parts.append((np.array([number], dtype=np.uint32), marks[:1].astype(np.bool_)))
    tokens, counted = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if tokenizer.end_of_text in tokens:
        raise DataError(
            "holds the token that follows documents, between its messages: choose another template"
        )
    return tokens, counted, rendered.is_open
