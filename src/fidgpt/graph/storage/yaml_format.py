"""YAML as data: what JSON could say too, and nothing else."""

import re
from typing import Any

import yaml

from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.storage.files import read_float

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser where it is there
_INT = re.compile(r"[-+]?[0-9]{1,4000}")
_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}
_DEEPEST = 200


def read_yaml(text: str) -> Any:
    """Return the data of a YAML 1.2 document, in which `no` is a text and 1e-3 a number.

    Takes time linear in the length of the text: there are no aliases, with which a short text
    could stand for a long one.

    Raises:
      ConfigError: it is no YAML, or has aliases, tags, a key twice or more than one document.
    """
    reading = _Reading()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            reading.take(event)
    except (yaml.YAMLError, UnicodeError) as error:  # a text may hold half a character
        problem = " ".join(str(error).split())
        raise ConfigError(f"it is no YAML: {problem:.200}.") from None
    return reading.root


class _Reading:
    """Builds the data as events come, without recursion."""

    def __init__(self) -> None:
        self.root: Any = None
        self._num_documents = 0
        self._open: list[Any] = []  # containers not yet closed, the innermost last
        self._keys: list[Any] = []  # the key that waits for its value, of each of them

    def take(self, event: yaml.Event) -> None:
        """Goes on by one event."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._num_documents += 1
            if self._num_documents > 1:
                raise ConfigError("it holds more than one YAML document.")
        elif isinstance(event, yaml.AliasEvent):
            raise _refused(event, f"the alias *{event.anchor}")
        elif isinstance(event, yaml.ScalarEvent):
            self._check_tag(event, "str")
            is_plain = event.implicit[0]
            self._put(_scalar(event) if is_plain else event.value, event)
        elif isinstance(event, yaml.MappingStartEvent):
            self._check_tag(event, "map")
            self._enter({}, event)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, "seq")
            self._enter([], event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._open.pop()
            self._keys.pop()

    def _check_tag(self, event: Any, expected: str) -> None:
        if event.tag not in (None, "!", f"tag:yaml.org,2002:{expected}"):
            raise _refused(event, f"the tag {event.tag}")

    def _enter(self, container: Any, event: Any) -> None:
        if len(self._open) >= _DEEPEST:
            raise _refused(event, f"nesting deeper than {_DEEPEST}")
        if self._open and isinstance(self._open[-1], dict) and self._keys[-1] is _NO_KEY:
            raise _refused(event, "a key that is no text")
        self._put(container, event)
        self._open.append(container)
        self._keys.append(_NO_KEY)

    def _put(self, value: Any, event: Any) -> None:
        if not self._open:
            self.root = value
        elif isinstance(self._open[-1], list):
            self._open[-1].append(value)
        elif self._keys[-1] is not _NO_KEY:
            self._open[-1][self._keys[-1]] = value
            self._keys[-1] = _NO_KEY
        elif event.value in self._open[-1] or event.value == "<<":
            raise _refused(event, f"the key {event.value!r:.80}, twice or for merging")
        else:
            self._keys[-1] = event.value  # as it is written: 1 is the text "1", as in JSON


class _NoKey:
    """Stands where the next thing is a key."""


_NO_KEY = _NoKey()


def _scalar(event: Any) -> Any:
    text = event.value
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if not _FLOAT.fullmatch(text):
        return text
    with at(f"line {_line(event)}"):
        return read_float(text)


def _refused(event: Any, what: str) -> ConfigError:
    return ConfigError(f"line {_line(event)}: {what:.100} has no meaning in a config file.")


def _line(event: Any) -> int:
    return event.start_mark.line + 1
