"""What a text means for a parameter: a value, a formula, a function or a node, and which fit."""

import collections.abc
import contextlib
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue

from fidgpt.errors import ConfigError, at, listed, nearest
from fidgpt.graph import binding, expressions, fiddle, formulas, hints, walk
from fidgpt.graph.paths import ParameterRef, describe
from fidgpt.graph.walk import parts as parts_of

Parts = Mapping[str, Callable[..., Any]]  # constructors and functions that a text may name
_ITEMS = {list: "[...]", tuple: "(..., ...)", dict: "{name: ...}"}  # as they are written
_CALL = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(\(.*\))?\s*", re.DOTALL)
_PLAIN = (int, float, bool, str, type(None))
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY


class _Unfitting(ConfigError):
    """A text is no part that a parameter takes."""


class TextReader:
    """Reads texts for parameters of a graph, by their annotations."""

    def __init__(self, root: Any, parts: Parts) -> None:
        """Keep what a text may refer to.

        Args:
          root: the graph, whose values formulas name.
          parts: the constructors and functions that a text may name.
        """
        self._root = root
        self._parts = parts

    def read(self, ref: ParameterRef, text: str) -> Any:
        """Return what a text means for a parameter: a plain value, a formula or a new node.

        Raises:
          ConfigError: nothing that fits there.
        """
        try:
            return self._read_unnamed(ref, text)
        except ConfigError as error:
            if error.place.startswith((f"{ref.path}[", f"{ref.path}.")):
                raise  # it has the path of an inner one
            raise ConfigError(f"{ref.path}: {error}", place=ref.path) from error

    def changed(self, ref: ParameterRef, sign: str, text: str) -> Any:
        """Return a parameter's number multiplied, increased or decreased by what a text means.

        Of a list, tuple or dict, `+` gives one with more items.

        Raises:
          ConfigError: there is neither a number nor a list, or the result does not fit.
        """
        now = ref.value
        if now is fdl.NO_VALUE:
            now = fiddle.default_of(ref.container, ref.key)
        if sign == "+" and fiddle.kind_of(now) in _ITEMS:
            return self._extended(ref, now, text)
        with at(f"{ref.path}{sign}={text}"):
            if ref.value is fdl.NO_VALUE and binding.inherits(self._root, ref.container, ref.key):
                tags = sorted(fdl.get_tags(ref.container, ref.key), key=str)
                name = f"@{tags[0].__name__}"
                return self._formula(ref, f"{{{name}}}", {name: TaggedValue(tags=tags)}, sign, text)
            if formulas.is_formula(now):
                own = fiddle.set_arguments(walk.clone_part(now))
                return self._formula(ref, f"({own['text']})", own.get("values") or {}, sign, text)
            if hints.is_quantity(now) and hints.fits(now, int | float):
                return self._formula(ref, "{before}", {"before": now}, sign, text)
            if now is fdl.NO_VALUE:
                raise ConfigError("it has no value to change.")
            if type(now) not in (int, float):
                adds = "+= appends items, and " if fiddle.kind_of(now) in _ITEMS else ""
                raise ConfigError(
                    f"it is {describe(now)}, not a number: {adds}set:{ref.path}=... sets it."
                )
            if formulas.means_formula(text, ref.hint):
                return formulas.make_formula(self._root, f"{now!r} {sign} ({text})", ref=ref)
            return _number(ref, now, sign, text)

    def part_named(self, name: str, hint: Any) -> Callable[..., Any] | None:
        """Return what a name stands for: a class of the hint, or a known component."""
        classes = _classes_in(hint)
        is_known = name not in classes and name in self._parts
        return self._parts[name] if is_known else classes.get(name)

    def new_part(self, ref: ParameterRef, function: Any, call: expressions.Call) -> fdl.Buildable:
        """Return the node of a call, of the first kind that fits.

        Raises:
          ConfigError: no kind fits, or an argument does not.
        """
        if (kind := self.kind_for(ref, function)) is None:
            raise self._unfitting(ref, call.name, function)
        return self.with_arguments(ref, kind(function), call)

    def kind_for(self, ref: ParameterRef, function: Any) -> type[fdl.Buildable] | None:
        """Return the first kind of node of a function that fits a parameter; None if none does."""
        is_implementer = _is_implementer(function, ref.hint)
        kinds = sorted(_kinds(ref), key=lambda kind: is_implementer and kind is fdl.Partial)
        return next((kind for kind in kinds if hints.fits(kind(function), ref.hint)), None)

    def first_part(self, ref: ParameterRef, function: Any, call: expressions.Call) -> fdl.Buildable:
        """Return a node for a parameter that holds none, or that computes the number it takes."""
        is_empty = ref.value is None or ref.value is fdl.NO_VALUE
        with contextlib.suppress(*() if is_empty else (_Unfitting,)):
            if is_empty or not hints.is_unknown(ref.hint):
                return self.new_part(ref, function, call)
        raise ConfigError(f"it is {describe(ref.value)}, not a component: write set:{ref.path}=...")

    def with_arguments(
        self, ref: ParameterRef, part: fdl.Buildable, call: expressions.Call
    ) -> fdl.Buildable:
        """Set the arguments of a call on a node that is about to replace the value of `ref`.

        Required parameters without a value get the tags of the parameters of that name, to inherit.

        Raises:
          ConfigError: an argument is unknown, given twice, or does not fit.
        """
        for name, text in call.texts(fiddle.parameters_of(part).values()).items():
            argument = ParameterRef(part, name, ref)
            argument.set(self.read(argument, text))
        for key, value in fiddle.all_arguments(part).items():
            if value is not fdl.NO_VALUE or not isinstance(key, str) or fdl.get_tags(part, key):
                continue
            if isinstance(ref.value, fdl.Buildable) and key in fiddle.all_arguments(ref.value):
                carried = {fdl.get_tags(ref.value, key)}
            else:  # the tags of all parameters of that name, if they are the same
                tags_by_key = [fiddle.nonempty_tags(node.value) for node in parts_of(self._root)]
                carried = {tags[key] for tags in tags_by_key if key in tags}
            for tag in carried.pop() if len(carried) == 1 else ():
                fdl.add_tag(part, key, tag)
        return part

    def why_no_part(self, ref: ParameterRef, selector: str, text: str) -> str:
        """Return why a text names no part, and what to write in place of it."""
        name, text = expressions.parse_call(text).name, text.strip()
        likely = self._which_fit(ref, name)
        what = f"there is no component {name!r}"
        with contextlib.suppress(ConfigError):  # what means nothing here, or anywhere
            if not isinstance(expressions.read_value(text, Any), str):
                what = f"{text:.60} is a value, not a component"
                self.read(ref, text)
                likely = f"set:{selector}={text} sets it."
        return f"{what}. {likely}"

    def _read_unnamed(self, ref: ParameterRef, text: str) -> Any:
        hint = ref.hint
        function = self._function_in(text, ref)
        if formulas.means_formula(text, hint) and not (function and "(" in text):
            return formulas.make_formula(self._root, text, ref=ref)
        if function is not None:
            is_bare = "(" not in text and not _is_implementer(function, hint)
            if is_bare and _takes_function(ref) and hints.fits(function, hint):
                return function
            call = expressions.parse_call(text)
            with contextlib.suppress(_Unfitting):
                return self.new_part(ref, function, call)

        def read_item(key: fiddle.Key, item: str) -> Any:
            return self.read(ParameterRef({key: None}, key, ref), item)

        try:
            return expressions.read_value(text, hint)
        except ConfigError:
            if not self._takes_part(hint):
                raise
            if expressions.item_texts(text, hint):
                return expressions.read_items(text, hint, read_item)
            if hints.can_be_typed(hint):
                raise
            raise self._unfitting(ref, text, function) from None

    def _function_in(self, text: str, ref: ParameterRef) -> Callable[..., Any] | None:
        """Return what a text names or calls; None where it is a value of another kind.

        Raises:
          ConfigError: it is a call, and no part has that name.
        """
        hint = ref.hint
        call = _CALL.fullmatch(text) if self._takes_part(hint) else None
        if call is None:
            return None
        takes_text, is_bare = str in hints.members_of(hint), call[2] is None
        takes_any = any(map(hints.is_unknown, hints.members_of(hint)))
        if is_bare and (takes_text or ("." in call[1] and takes_any)):
            return None  # a word, which is as good a text as a name
        try:
            function = self.part_named(call[1], hint)
        except ConfigError:
            if is_bare and hints.can_be_typed(hint):
                return None  # a value whose name has dots, such as torch.float32
            raise
        if function is None and not (is_bare or takes_text or formulas.means_formula(text, hint)):
            likely = self._which_fit(ref, call[1])
            raise ConfigError(f"there is no component {call[1]!r}. {likely}")
        return function

    def _unfitting(self, ref: ParameterRef, text: str, function: Any = None) -> _Unfitting:
        lacks = ""
        if inspect.isclass(function):
            lacks = hints.missing_methods(fdl.Config(function), ref.hint)
        likely = self._which_fit(ref, text)
        takes = hints.name_of(ref.hint)
        return _Unfitting(f"{text.strip()!r:.60} is not a {takes}. {likely}{lacks}")

    def _which_fit(self, ref: ParameterRef, text: str) -> str:
        """Return a sentence with components that fit: named like the text, or like the present."""
        hint = ref.hint
        for empty, key in (([], 0), ({}, "")):
            takes_items = any(hints.fits(empty, member) for member in hints.members_of(hint))
            if takes_items and not hints.can_be_typed(hints.element_hint(hint, key)):
                inner = self._which_fit(ParameterRef({key: None}, key, ref), "")
                return f"Write {_ITEMS[type(empty)]}. {inner}"
        known = _classes_in(hint) | dict(self._parts)
        names = fitting(hint, known)
        if near := nearest(text, names):
            return f"Did you mean {' or '.join(near)}?"
        if not names:
            return "It takes a component, and no named one fits: use a fiddler to set it."
        is_part = isinstance(ref.value, fdl.Buildable)
        now = set(fiddle.all_arguments(ref.value)) if is_part else set()
        alike = {n: len(now & {*inspect.signature(known[n]).parameters}) for n in names}
        names.sort(key=lambda name: (-alike[name], name))
        return f"Name a component that fits, such as {listed(names, most=6)}."

    def _takes_part(self, hint: Any) -> bool:
        return bool(self._parts) and any(member not in _PLAIN for member in hints.members_of(hint))

    def _formula(
        self, ref: ParameterRef, now: str, known: dict[str, Any], sign: str, text: str
    ) -> fdl.Config[Any]:
        amount = formulas.make_formula(self._root, text, ref=ref)
        is_single = text.replace(".", "").replace("_", "").isalnum()
        by = text if is_single else f"({text})"
        made = fdl.Config(formulas.formula, text=f"{now} {sign} {by}")
        made.values = {**known, **(fiddle.set_arguments(amount).get("values") or {})}
        return made

    def _extended(self, ref: ParameterRef, now: Any, text: str) -> Any:
        """Return the present items and the items of a text; the same object if the text has none.

        Raises:
          ConfigError: the text has no form of items, an item does not fit, or an entry exists.
        """
        if text in ("[]", "()", "{}"):
            return now
        is_dict = isinstance(now, dict)
        with at(f"{ref.path}+={text}"):
            texts = expressions.item_texts(text, ref.hint)
            if not texts or is_dict != (text[:1] == "{"):
                form = _ITEMS[type(now)]
                raise ConfigError(
                    f"it is {describe(now)}, to which += appends items: write +={form}."
                )
            if present := [key for key in texts if is_dict and key in now]:
                key = present[0]
                remedy = f"set:{ref.path}[{key!r}]=... sets it."
                raise ConfigError(f"entry {key!r} exists already: {remedy}")
        added: dict[Any, Any] = {}
        for key, item_text in texts.items():
            own = key if is_dict else len(now) + key
            item = ParameterRef({own: None}, own, ref)
            added[own] = self.read(item, item_text)
            item.check(added[own])
        return {**now, **added} if is_dict else type(now)([*now, *added.values()])


def _number(ref: ParameterRef, now: int | float, sign: str, text: str) -> Any:
    result = expressions.compute(f"({now!r}) {sign} ({text})", {})
    asked, hint = expressions.as_asked(result, ref.hint), ref.hint
    stays_whole = type(now) is int and float not in hints.members_of(hint)
    if stays_whole and expressions.is_whole(asked):
        asked = int(asked)
    if not hints.fits(asked, hint) or (stays_whole and type(asked) is not int):
        takes = "a whole number" if hints.fits(asked, hint) else hints.name_of(hint)
        raise ConfigError(f"{now!r} {sign} {text} is {result!r}, and it takes {takes}.")
    return asked


def _is_implementer(function: Any, hint: Any) -> bool:
    """Whether it is a class whose instances may have the methods of a Protocol in a hint."""
    return inspect.isclass(function) and any(map(hints.is_protocol, hints.members_of(hint)))


def _classes_in(hint: Any) -> dict[str, Callable[..., Any]]:
    """Return the classes in a hint that can be constructed, by name."""
    classes = [t for t in hints.members_of(hint) if inspect.isclass(t) and not hints.is_protocol(t)]
    made = [kind for kind in classes if not (inspect.isabstract(kind) or hints.can_be_typed(kind))]
    others = ("builtins", "torch")  # whose classes are known, or are no parts
    return {kind.__name__: kind for kind in made if kind.__module__.partition(".")[0] not in others}


def _takes_function(ref: ParameterRef) -> bool:
    """Whether a parameter holds a function itself, rather than what one returns."""
    now = ref.value
    if now is fdl.NO_VALUE and isinstance(ref.container, fdl.Buildable):
        now = fiddle.default_of(ref.container, ref.key)
    return inspect.isroutine(now)


def _kinds(ref: ParameterRef) -> list[Any]:
    """Return the kinds of node that a parameter may hold, the likeliest first.

    A new node is of the same kind as the one it replaces. In a factory it is created for each
    call, so that nothing is shared by mistake.
    """
    holder = ref.owner[0] if ref.owner else None
    made = fdl.ArgFactory if isinstance(holder, fdl.Partial | fdl.ArgFactory) else fdl.Config
    is_callable = any(typing.get_origin(t) is Callable for t in hints.members_of(ref.hint))
    kinds = [fdl.Partial, made] if is_callable or _takes_function(ref) else [made, fdl.Partial]
    return [type(ref.value), *kinds] if isinstance(ref.value, fdl.Buildable) else kinds


def fitting(hint: Any, components: Mapping[str, Any]) -> list[str]:
    """Return the names of the components that may be set where a type is expected.

    Stricter than `hints.fits`, which gives the benefit of the doubt: a Protocol's methods
    must have parameters of the same names.
    """
    members = [member for member in hints.members_of(hint) if not hints.is_unknown(member)]
    return [
        name
        for name, made in components.items()
        if builds(made) and any(_fits(made, member) for member in members)
    ]


def _fits(made: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is collections.abc.Callable:
        if _is_called_as(made, hint):
            return True
        asked, hint = typing.get_args(hint) or (None, Any)
        try:
            if isinstance(asked, list) and asked:  # without any, a partial holds all it needs
                inspect.signature(made).bind(*asked)
        except TypeError:
            return False
    returned = hints.hints_of(made).get("return")
    returned, hint = (getattr(side, "array_type", side) for side in (returned, hint))
    if hints.is_unknown(hint) or hint in (bool, str, None, type(None)):
        return False
    if not hints.is_protocol(hint):
        return inspect.isclass(returned) and inspect.isclass(hint) and issubclass(returned, hint)
    if inspect.isclass(returned) and hints.role_of(returned) == hint.__name__:
        return True
    methods, taken = hints.methods_of(hint), hints.hints_of(made)
    if inspect.isclass(returned):
        if any(taken.get(name) is hint for name in _required(made)):
            return False  # it holds one, as a block does an attention
        own = {name: hints.own_method(returned, name) for name in methods}
        is_alike = all(_has_names_of(own[name], asked) for name, asked in methods.items())
        if is_alike and hints.fits(fdl.Config(returned), hint):
            return True
    is_given = methods.keys() == {"__call__"} and {*_required(made)} <= {
        *_required(methods["__call__"])
    }
    return is_given and hints.fits(fdl.Partial(made), hint)


def _has_names_of(own: Any, asked: Any) -> bool:
    names = _required(asked)[1:]
    return inspect.isfunction(own) and _required(own)[1:][: len(names)] == names


def _is_called_as(made: Any, hint: Any) -> bool:
    """Whether a function, or instances of a class, are called as a Callable of known types is.

    What else may be named is for a config to set.
    """
    asked, result = typing.get_args(hint) or (None, Any)
    call = made if inspect.isroutine(made) else vars(made).get("__call__")
    if not isinstance(asked, list) or not asked or hints.is_unknown(result) or call is None:
        return False
    names = list(inspect.signature(call).parameters)[call is not made :]
    own, parameters = hints.hints_of(call), inspect.signature(call).parameters
    result = type(None) if result is None else result
    unnamed = [name for name in names[len(asked) :] if parameters[name].kind is _POSITIONAL]
    if len(names) < len(asked) or unnamed or own.get("return", Any) != result:
        return False
    pairs = zip(names, asked, strict=False)
    return all(_takes(parameters[name], own.get(name, Any), asked) for name, asked in pairs)


def _takes(parameter: inspect.Parameter, own: Any, asked: Any) -> bool:
    """Whether a parameter takes what another annotation asks: a Tensor takes a Parameter."""
    own, asked = (getattr(side, "array_type", side) for side in (own, asked))
    is_narrower = inspect.isclass(own) and inspect.isclass(asked) and issubclass(asked, own)
    is_named = parameter.kind in (parameter.KEYWORD_ONLY, *fiddle.VARIADIC)
    return not is_named and (own == asked or is_narrower)


def _required(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters, without the keywords that have defaults."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY or p.default is p.empty]


def builds(made: Any) -> bool:
    """Whether a graph could hold a call, or the function itself."""
    if inspect.isclass(made):
        return not (inspect.isabstract(made) or issubclass(made, dict))
    return not hints.is_unknown(hints.hints_of(made).get("return", Any))
