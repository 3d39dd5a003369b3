"""Rows of files as the messages of conversations."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fidgpt.data.chat_templates import Message
from fidgpt.data.errors import DataError

__all__ = ["messages_of"]

_ROLES = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "developer": "system",
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    **dict.fromkeys(("bing", "bard", "ai", "bot"), "assistant"),
    "model": "assistant",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
LISTS = ("messages", "conversations", "conversation")
QUESTIONS = ("prompt", "question", "instruction", "query", "problem")
_ANSWERS = ("completion", "response", "answer", "output", "solution")
_FOLLOWS: Mapping[str, set[str | None]] = {  # what may come before a role; None is the beginning
    "system": {None},
    "user": {None, "system", "assistant"},
    "assistant": {"user", "tool"},
    "tool": {"assistant", "tool"},
}
# Fields of a message that have another form here, or that templates do not know.
_TEXTS = ("content", "value", "text")
_READ = ("role", "from", *_TEXTS, "tool_calls")


@contextlib.contextmanager
def naming_place(place: str) -> Iterator[None]:
    """Name the row that an error inside is about.

    Raises:
      DataError: one was raised inside.
    """
    try:
        yield
    except DataError as error:
        raise DataError(f"{place} {str(error).rstrip('.')}.") from error


def messages_of(row: Mapping[str, Any]) -> list[Message]:
    """Return the messages of a row: OpenAI's, ShareGPT's, Alpaca's, or a question and an answer.

    Args:
      row: values by field.

    Raises:
      DataError: it has none of these forms, a message has no text, or roles are out of order.
    """
    name = next((name for name in LISTS if row.get(name)), None)
    question = next((name for name in QUESTIONS if row.get(name)), None)
    answer = next((name for name in _ANSWERS if name in row), None)
    if name is not None:
        messages = messages_in(row[name], role="user")
    elif question is not None and answer is not None:
        questions, answers = messages_in(row[question], role="user"), row[answer]
        if row.get("input"):  # Alpaca's, which continues the instruction
            text = f"{questions[-1]['content']}\n\n{row['input']}"
            questions[-1] = {**questions[-1], "content": text}
        messages = [*questions, *messages_in(answers, role="assistant")]
    else:
        raise DataError(
            f"holds no conversation, but the fields {', '.join(map(str, row)) or 'none'}: it needs "
            f"a list {' or '.join(LISTS[:2])}, or a question ({', '.join(QUESTIONS)}) with an "
            f"answer ({', '.join(_ANSWERS)})"
        )
    if row.get("system") and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": str(row["system"])}, *messages]
    require_order(messages)
    return messages


def messages_in(value: Any, *, role: str) -> list[Message]:
    """Return a list of messages in OpenAI's form, and a text as the message of a role.

    Raises:
      DataError: it is neither, or a message has no text or an unknown role.
    """
    alone = value if isinstance(value, Mapping) else {"role": role, "content": value}
    given = value if isinstance(value, list) else [alone]
    return [_message(message, f"message {number}") for number, message in enumerate(given, 1)]


def _message(message: Any, place: str) -> Message:
    if not isinstance(message, Mapping):
        raise DataError(f"has {message!r:.40} as {place}: it must be an object with role and text")
    given = message.get("role", message.get("from"))
    role = _ROLES.get(str(given).lower())
    if role is None:
        raise DataError(f"has the role {given!r:.40} in {place}: name one of {', '.join(_ROLES)}")
    content = next((message[key] for key in _TEXTS if message.get(key) is not None), None)
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise DataError(f"has more than text in {place}, such as an image: leave it out")
        content = "".join(map(str, parts))
    if not isinstance(content, str | None):
        raise DataError(f"has {content!r:.40} as text of {place}: it must be a text")
    calls = [_called(call) for call in message.get("tool_calls") or []]
    if role == "assistant" and not (content or "").strip() and not calls:
        raise DataError(f"has an empty answer in {place}: leave it out, or the conversation")
    others = {key: item for key, item in message.items() if key not in _READ and item is not None}
    others |= {"tool_calls": calls} if calls else {}
    return {"role": role, "content": content or "", **others}


def _called(call: Any) -> Any:
    """Return a tool call whose arguments are an object, as templates expect them, not its text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    with contextlib.suppress(ValueError):
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    return call


def tools_of(row: Mapping[str, Any]) -> Any:
    """Return the tools that a conversation may call, as objects; None if there are none.

    Raises:
      DataError: they are a text that is not JSON.
    """
    tools = row.get("tools")
    try:
        return json.loads(tools) if isinstance(tools, str) and tools else tools or None
    except ValueError as error:
        raise DataError(f"has tools that are not JSON ({error})") from error


def require_order(messages: Sequence[Message], *, answers: bool = True) -> None:
    """Check the order of roles.

    Args:
      messages: of a conversation.
      answers: whether one of them must be an assistant's.

    Raises:
      DataError: roles are out of order, or there is no answer.
    """
    before = None
    for number, message in enumerate(messages, start=1):
        role = message["role"]
        if before not in _FOLLOWS[role]:
            after = "the first" if before is None else f"after one of the {before}"
            raise DataError(
                f"has roles out of order: message {number} is one of the {role}, {after}. Put them "
                "in order, or leave the conversation out"
            )
        before = role
    if answers and not any(message["role"] == "assistant" for message in messages):
        raise DataError("has no answer of an assistant: leave the conversation out")
