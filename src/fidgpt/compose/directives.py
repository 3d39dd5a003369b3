"""Directives: parsed, applied in order, and errors attributed to them."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.compose.catalogue import Catalogue, call_with, guarded
from fidgpt.compose.effects import Composed, Effect, edits_between, is_model, speaker
from fidgpt.compose.sources import read_text
from fidgpt.compose.spelling import (
    DEFAULT_CONFIG,
    KINDS,
    is_base,
    split_directive,
)
from fidgpt.graph import (
    ConfigError,
    ConfigErrors,
    Source,
    clone,
    find_parameter,
    parts,
    suggest,
)
from fidgpt.graph.edits import Edit, change_by, delete, set_text, tie, untie, use
from fidgpt.graph.errors import MissingEntry
from fidgpt.graph.expressions import parse_call
from fidgpt.graph.paths import key_at
from fidgpt.graph.provenance import attributed_to
from fidgpt.graph.walk import join


def from_function(text: str, catalogue: Catalogue) -> fdl.Config:
    """The graph that a named function returns, as a copy: it may return one that it keeps.

    Raises:
      ConfigError: there is no such function, it fails, or returns no graph.
    """
    call = parse_call(text)
    root = call_with(catalogue.find("config", call.name), call)
    if not isinstance(root, fdl.Config):
        raise ConfigError(
            f"{call.name} returns {type(root).__name__}, and a config is a fdl.Config."
        )
    return clone(root)


def from_file(text: str, catalogue: Catalogue) -> fdl.Config:
    """The graph in a file, at any path that etils' epath or fsspec can read.

    Raises:
      ConfigError: it cannot be read, or holds no graph.
    """
    from fidgpt.compose.sources import (
        load_told,  # late: most graphs are not of files
        recall,  # late: most graphs are not of files
    )

    path, content = read_text(text)
    return recall(load_told(content, source=path, allowed=catalogue.packages), path)


def from_text(text: str, catalogue: Catalogue) -> fdl.Config:
    """The graph that the text of a file describes.

    Raises:
      ConfigError: it describes none.
    """
    from fidgpt.compose.sources import load_told

    return load_told(text, source="the text", allowed=catalogue.packages)


def remedy(root: Any, place: str) -> str:
    """What to add where `place` lacks an entry: something if it holds the blocks of a model."""
    models = [node for node in parts(root) if is_model(node.value)]
    meant = (node.value for node in models if join(node.path, ".blocks") == place)
    return next(map(_told, meant), "")


def _told(model: fdl.Buildable) -> str:
    blocks, depth = model.blocks, model.num_layers
    if not (isinstance(blocks, list | tuple) and isinstance(depth, int) and len(blocks) < depth):
        return ""
    stands = "It stands" if len(blocks) == 1 else "They stand in turn"
    return (
        f"\n{stands} for all {depth} layers: say fiddler:unroll before this, and each layer has an "
        "entry of its own."
    )


_QUOTED = re.compile(r"\['[^']*'\]|'([^']+)'|\"([^\"]+)\"")  # the keys of a path are no quotes
_PUNCTUATION = ".,:;"
_WIDEST = 100


def blamed(number: int, directive: str, message: str) -> str:
    """A mistake in a directive: which one it is, with carets under the wrong piece, and why."""
    return f"directive {number} is wrong:\n{pointed(directive, message)}\n{indented(message)}"


def pointed(directive: str, message: str) -> str:
    """A directive as it was typed, and carets under the piece of it that a message is about.

    That is the first piece that the message quotes and the directive holds, or the longest word
    that both have; without any, all that follows the directive's kind.
    """
    line, *more = directive.splitlines() or [""]
    shown = line if len(line) <= _WIDEST else line[: _WIDEST - 3] + "..."
    flag = f"--config={shown}" + (" ..." if more and shown == line else "")
    begin, end = _piece(shown, message)
    carets = " " * (len("--config=") + begin) + "^" * (end - begin)
    return f"{indented(flag)}\n{indented(carets)}"


def indented(text: str) -> str:
    """Lines that belong to the one above them."""
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _alone(word: str, text: str, start: int = 0) -> re.Match[str] | None:
    """Where a word stands by itself, and not within a longer word or number."""
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)").search(text, start)


def _span(directive: str, word: str, start: int) -> tuple[int, int]:
    """Where a word that is there stands, rather by itself than within another one."""
    alone = _alone(word, directive, start)
    at = alone.start() if alone else directive.find(word, start)
    return at, at + len(word)


def _piece(directive: str, message: str) -> tuple[int, int]:
    """Where the wrong piece begins and ends."""
    start = directive.find(":") + 1
    value = directive.find("=") + 1 or len(directive)
    phrase = _phrase(message, directive[value:])
    unsaid = message.replace(phrase, "") if phrase else message  # a value may have quotes in it
    if at := _at_quoted(directive, unsaid, start):
        return at
    if phrase:
        return _span(directive, phrase, value)
    for word in _words(message):
        if word in directive[start:]:
            return _span(directive, word, start)
    start = start if start < len(directive) else 0
    return start, max(len(directive), start + 1)


def _words(message: str) -> list[str]:
    """The words of a message, the longest first; short ones are in many directives."""
    words = [word.strip(_PUNCTUATION) for word in message.split()]
    return sorted((word for word in words if len(word) > 2), key=len, reverse=True)


def _at_quoted(directive: str, message: str, start: int) -> tuple[int, int] | None:
    """The first piece of a directive that a message quotes."""
    quoted = [found[1] or found[2] for found in _QUOTED.finditer(message)]
    found = next((word for word in quoted if word and word in directive), "")
    return _span(directive, found, start if found in directive[start:] else 0) if found else None


def _phrase(message: str, value: str) -> str:
    """The longest words in a row that a message has of the value that a directive says."""
    words, longest = message.split(), ""
    for i in range(len(words)):
        for end in range(i + 1, len(words) + 1):
            phrase = " ".join(words[i:end]).strip(_PUNCTUATION)
            if not _alone(phrase, value):
                break
            longest = max(longest, phrase, key=len)
    return longest if len(longest) > 2 else ""


_QUOTED_VALUE = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ASSIGNMENT = re.compile(rf"((?:[^='\"]|{_QUOTED_VALUE})*?)\s*([*+-]?)=(.*)", re.DOTALL)
_AMOUNT = re.compile(r"\s*([*+/-])=?\s*([\w.({][^*/+-]*)")
_OTHER_SIGN = re.compile(r"(?<=[\w\]])\s*([/*%^]+)$")
Change = Callable[[str, fdl.Config, Catalogue], list[Edit]]


def change_set(text: str, root: fdl.Config, catalogue: Catalogue) -> list[Edit]:
    """Sets values: `set:model.num_layers=6`, `set:**.dropout=0.1`, `set:seq_len*=2`.

    To a list, tuple or dict, `+=` adds items: `set:trackers+=[JSONLines]`.

    Raises:
      ConfigError: the text is wrong, or nothing can be set so.
    """
    selector, sign, value = assignment(text, "set:model.num_layers=6")
    if sign:
        return change_by(root, selector, sign, value, parts=catalogue.parts)
    with _sign_before(f"set:{selector}", value):
        return set_text(root, selector, value, parts=catalogue.parts)


def change_tag(text: str, root: fdl.Config, catalogue: Catalogue) -> list[Edit]:
    """Says a quantity anew: `tag:LearningRate=3e-4`, `tag:LearningRate*=0.5`.

    Raises:
      ConfigError: the text is wrong, or nothing can be said so.
    """
    name, sign, value = assignment(text, "tag:LearningRate=3e-4")
    tag = catalogue.find("tag", name)
    if sign:
        return change_by(root, tag, sign, value, parts=catalogue.parts)
    with _sign_before(f"tag:{name}", value):
        return set_text(root, tag, value, parts=catalogue.parts)


def change_del(text: str, root: fdl.Config, _: Catalogue) -> list[Edit]:
    """Goes back to defaults: `del:optimizer.betas`.

    Raises:
      ConfigError: the text names nothing, or what has no default.
    """
    return delete(root, text.strip())


def change_use(text: str, root: fdl.Config, catalogue: Catalogue) -> list[Edit]:
    """Puts a part in the place of another: `use::RMSNorm=LayerNorm(eps=1e-6)`.

    Raises:
      ConfigError: the text is wrong, or the part does not fit.
    """
    selector, call = _plain_assignment(text, "use:schedule=WarmupStableDecay(decay_steps=50)")
    return use(root, selector, call, parts=catalogue.parts)


def change_tie(text: str, root: fdl.Config, _: Catalogue) -> list[Edit]:
    """Makes a place hold what another holds: `tie:unembedding.weight=embedding.weight`.

    Raises:
      ConfigError: the text is wrong, or what is there cannot be shared so.
    """
    selector, source = _plain_assignment(text, "tie:model.unembedding=model.embedding")
    return tie(root, selector, source.strip())


def change_untie(text: str, root: fdl.Config, _: Catalogue) -> list[Edit]:
    """Gives a place a part of its own: `untie:model.unembedding.weight`.

    Raises:
      ConfigError: the text names nothing that is shared.
    """
    return untie(root, text.strip())


def run_fiddler(text: str, root: fdl.Config, catalogue: Catalogue) -> fdl.Config:
    """Lets a fiddler change a graph: `fiddler:use_gqa(num_kv_heads=2)`; returns that graph.

    Raises:
      ConfigError: there is no such fiddler, it fails, or it returns something.
    """
    call = parse_call(text)
    _require_none(call.name, call_with(catalogue.find("fiddler", call.name), call, root))
    return root


def run(fiddler: Any, root: fdl.Config) -> None:
    """Lets a fiddler change a graph: a function, or a part that stands for one with arguments.

    Raises:
      ConfigError: it is none, fails, or returns something.
    """
    name = name_of(fiddler)
    is_part = isinstance(fiddler, fdl.Partial)
    function = guarded(name, fdl.build, fiddler) if is_part else fiddler
    if not callable(function) or isinstance(function, fdl.Buildable):
        raise ConfigError(f"{name} is no fiddler: give a function, or a fdl.Partial of one.")
    _require_none(name, guarded(name, function, root))


def name_of(fiddler: Any) -> str:
    """What a fiddler is called."""
    called = fdl.get_callable(fiddler) if isinstance(fiddler, fdl.Buildable) else fiddler
    return getattr(called, "__name__", repr(called))


def apply_patch(text: str, root: fdl.Config, catalogue: Catalogue) -> fdl.Config:
    """Applies a saved difference: `patch:wide.patch`; returns the changed graph.

    Raises:
      ConfigError: the file cannot be read, or does not apply.
    """
    path, content = read_text(text)
    from fidgpt.graph.difference import patches  # late: most runs apply none

    return patches.apply_patch(root, content, source=path, allowed=catalogue.packages)


def _require_none(name: str, returned: Any) -> None:
    if returned is not None:
        raise ConfigError(
            f"{name} returns {type(returned).__name__}, and a fiddler returns None: it "
            "changes the graph that it is given."
        )


def _plain_assignment(text: str, example: str) -> tuple[str, str]:
    left, sign, right = assignment(text, example)
    if sign:
        raise ConfigError(
            f"{sign}= is for set: and tag:, for numbers and lists. Write, for example, {example}."
        )
    return left, right


@contextlib.contextmanager
def _sign_before(what: str, value: str) -> Iterator[None]:
    """Where a value is refused that begins with a sign, tells where the sign belongs."""
    try:
        yield
    except ConfigError as error:
        match = _AMOUNT.fullmatch(value)
        if match is None:
            raise
        how = f"*=1/{match[2]}" if match[1] == "/" else f"{match[1]}={match[2]}"
        raise ConfigError(f"{error} To change what is there, write {what}{how}.") from error


def assignment(text: str, example: str) -> tuple[str, str, str]:
    """What is left of `=`, the sign before it, and what is right of it.

    Raises:
      ConfigError: there is no `=` with a name before it.
    """
    match = _ASSIGNMENT.fullmatch(text)
    if match is None or not match[1].strip():
        raise ConfigError(f"there is no '=' with a name before it. Write, for example, {example}.")
    left = match[1].strip()
    if other := _OTHER_SIGN.search(left):
        raise ConfigError(
            f"there is no {other[1]}{match[2]}=: a number is changed by *=, += and -=, so that "
            f"{left[: other.start()].rstrip()}*=1/2 halves it."
        )
    return left, match[2], match[3]


_BASES: dict[str, Callable[[str, Catalogue], fdl.Config]] = {
    "config": from_function,
    "config_file": from_file,
    "config_str": from_text,
}
# Code of somebody's own may fail half-way: it works on a copy.
_CODE: dict[str, Callable[[str, fdl.Config, Catalogue], fdl.Config]] = {
    "fiddler": run_fiddler,
    "patch": apply_patch,
}
_CHANGES: dict[str, Change] = {
    "set": change_set,
    "tag": change_tag,
    "del": change_del,
    "use": change_use,
    "tie": change_tie,
    "untie": change_untie,
}


def compose(
    directives: Sequence[str], catalogue: Catalogue, *, base: fdl.Config | None = None
) -> fdl.Config:
    """The graph that directives make, applied in the order given.

    Args:
      directives: what `--config` said.
      catalogue: what has a name.
      base: where the directives begin; `config:base`, unless the first of them says otherwise.

    Raises:
      ConfigErrors: some directives are wrong; each message shows which piece.
    """
    return composed(directives, catalogue, base=base).root


def composed(
    directives: Sequence[str],
    catalogue: Catalogue,
    *,
    base: fdl.Config | None = None,
    first: int = 1,
    more: Callable[[Composed], list[str]] | None = None,
) -> Composed:
    """The same graph, with what each directive changed.

    Args:
      directives: what `--config` said.
      catalogue: what has a name.
      base: where the directives begin, as for `compose`.
      first: the first one's number.
      more: what is wrong with what the other directives made, told too where one is wrong.

    Raises:
      ConfigErrors: as `compose` does.
    """
    graph = _Graph(catalogue, base)
    if base is None and not (directives and is_base(directives[0])):
        graph.begin(0, f"config:{DEFAULT_CONFIG}")
    mistakes: list[tuple[str, ConfigError]] = []
    for number, directive in enumerate(directives, start=first):
        try:
            with attributed_to(speaker(number, directive)):
                graph.apply(number, directive)
        except ConfigError as error:
            mistakes.append((blamed(number, directive, graph.told(error, directive)), error))
            if not graph.has_begun:  # all that follows would fail for this reason alone
                break
    if mistakes:
        others = more(Composed(graph.root, graph.effects)) if more and graph.has_begun else []
        raise ConfigErrors([*(message for message, _ in mistakes), *others]) from mistakes[0][1]
    return Composed(graph.root, graph.effects)


def apply_fiddlers(root: fdl.Config, fiddlers: Sequence[Any]) -> fdl.Config:
    """A copy of a graph that fiddlers changed, in order.

    Args:
      root: the graph; it stays as it is.
      fiddlers: functions, or parts that stand for them with their arguments, such as
        `fdl.Partial(use_gqa, num_kv_heads=2)`, from a graph of their own.

    Raises:
      ConfigError: one of them is no fiddler, fails, or returns something.
    """
    changed = clone(root)
    for number, fiddler in enumerate(fiddlers, start=1):
        with attributed_to(Source(name_of(fiddler), "fiddler", number)):
            run(fiddler, changed)
    return changed


class _Graph:
    """The graph so far, and what came of each directive."""

    def __init__(self, catalogue: Catalogue, base: fdl.Config | None) -> None:
        self._catalogue = catalogue
        self._root = base
        # Whether somebody else needs the graph as it is now: the caller, or an effect to compare.
        self._is_kept = base is not None
        self.effects: list[Effect] = []

    @property
    def has_begun(self) -> bool:
        return self._root is not None

    @property
    def root(self) -> fdl.Config:
        assert self._root is not None  # the first directive begins it, or the default does
        return self._root

    def told(self, error: ConfigError, directive: str) -> str:
        """What a user reads of a mistake in a directive, with what this graph has to do with it."""
        if not (self.has_begun and isinstance(error, MissingEntry)):
            return str(error)

        added = functools.partial(missing_entry_remedy, self.root, error.place, directive)
        return f"{error}{remedy(self.root, error.place) or added(self._catalogue)}"

    def apply(self, number: int, directive: str) -> None:
        kind, rest = split_directive(directive)
        if any("\ud800" <= letter <= "\udfff" for letter in directive):
            raise ConfigError("it is not UTF-8 text: whoever wrote it used another encoding.")
        if kind in _BASES:
            self.begin(number, directive)
        elif kind in _CODE:
            self._run(number, directive, functools.partial(_CODE[kind], rest))
        elif kind in _CHANGES:
            self._change(number, directive, functools.partial(_CHANGES[kind], rest))
        else:
            raise ConfigError(_no_directive(kind, directive.strip(), self._catalogue))

    def begin(self, number: int, directive: str) -> None:
        kind, rest = split_directive(directive)
        if self._root is not None:
            raise ConfigError(
                f"a {kind}: comes first, and only once: it is where the graph begins."
            )
        self._root = _BASES[kind](rest, self._catalogue)
        self._note(number, directive, list)

    def _run(self, number: int, directive: str, code: Callable[..., fdl.Config]) -> None:
        before = self.root
        self._root = after = code(clone(before), self._catalogue)
        self._is_kept = True

        def rerun(change: Callable[[Any], Any]) -> fdl.Config:
            changed = clone(before)
            change(changed)
            return code(changed, self._catalogue)

        edits = functools.partial(edits_between, before, after)
        self.effects.append(Effect(number, directive, edits, rerun))

    def _change(self, number: int, directive: str, change: Callable[..., list[Edit]]) -> None:
        if self._is_kept:
            self._root, self._is_kept = clone(self.root), False
        made = change(self.root, self._catalogue)
        self._note(number, directive, lambda: made)

    def _note(self, number: int, directive: str, edits: Callable[[], list[Edit]]) -> None:
        self.effects.append(Effect(number, directive, edits))


def _no_directive(kind: str, directive: str, catalogue: Catalogue) -> str:
    if likely := catalogue.kind_of(directive.partition("(")[0]):
        return f"a directive says what kind it is: {likely}:{directive}"
    if directive in KINDS:
        return f"{directive!r} needs a colon, and what it is about: {directive}:..."
    if kind.lower() in KINDS:
        return f"{kind!r} is no directive: write {kind.lower()}: in small letters."
    if not kind and "=" in directive:
        return f"a directive says what kind it is: set:{directive}"
    return (
        f"{kind or directive!r} is no directive. {suggest(kind or directive, KINDS)}\n"
        "  Write, for example, set:model.num_layers=6 or fiddler:make_small."
    )


_SETTING = ("set", "use")


def missing_entry_remedy(root: Any, place: str, directive: str, catalogue: Catalogue) -> str:
    """What would add the entry that a directive sets and `place` lacks; "" where nothing would."""
    kind, rest = split_directive(directive)
    if kind not in _SETTING:
        return ""
    try:
        path, sign, value = assignment(rest, "")
        key, end = key_at(path, len(place)) if path.startswith(place) else ("", 0)
        if sign or end != len(path):  # what is to be set lies deeper
            return ""
        container = find_parameter(root, place).value
        items = _items(container, key, value)
        change_by(clone(root), place, "+", items, parts=catalogue.parts)
    except ConfigError:  # it would not fit there either
        return ""
    is_short = len(value.split()) == 1
    return f"\nTo add one, say set:{place}+={items if is_short else _items(container, key, '...')}"


def _items(container: Any, key: Any, value: str) -> str:
    if isinstance(container, dict):
        return f"{{{key!r}:{value}}}"
    return f"[{value}]" if isinstance(container, list) else f"({value},)"
