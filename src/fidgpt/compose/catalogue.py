"""What can be named on a command line: configs, fiddlers, tags and components.

Beside fidgpt's own names, there are the names of dotted modules on PYTHONPATH, and of installed
packages that declare themselves in their `pyproject.toml`. Their modules `configs`, `fiddlers`,
`tags` and `parts` are then known by name, `families` describes models of other families, and
`constraints` checks every run:

    [project.entry-points."fidgpt.project"]
    lab = "lab"
"""

import collections
import enum
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import fiddle as fdl

from fidgpt.errors import at, is_user_error
from fidgpt.graph import ConfigError, clone, expressions, fiddle, hints, read_value, suggest
from fidgpt.graph.codec import TORCH_MODULES, find_name, is_tag
from fidgpt.late import exports

GROUP = "fidgpt.project"
_DOTTED_CONFIGS = {  # beside those in configs/
    "chat": "fidgpt.interop.trained_models.chat",
    "from_hf": "fidgpt.interop.hugging_face.from_hf",
}
_DOTTED_FIDDLERS = {"use_distillation": "fidgpt.interop.trained_models.use_distillation"}
_TORCH_SHORT = {"nn": "torch.nn", "optim": "torch.optim"}
_LIMITED = ("fidgpt", "torch")  # not everything in these packages is for configs
_INSTALLED = {"site-packages", "dist-packages"}
_PACKAGES = ("model", "optim", "data", "train", "parallel")


def call_with(function: Callable[..., Any], call: expressions.Call, *first: Any) -> Any:
    """Call a function with some arguments and, after them, those typed in a call.

    Raises:
      ConfigError: an argument is unknown, missing, one too many, or does not fit; or the function
        failed, which for a fiddler means that it does not suit the config.
    """
    parameters = [*inspect.signature(function).parameters.values()][len(first) :]
    values: dict[str, Any] = call.texts(parameters, is_complete=True)
    for name, text in values.items():
        with at(name):
            values[name] = read_value(text, hints.hints_of(function).get(name, Any))
    return called(call.name, function, *first, **values)


def needs_arguments(function: Callable[..., Any]) -> bool:
    """Return whether a function cannot be called without arguments."""
    parameters = inspect.signature(function).parameters.values()
    return any(arg.default is arg.empty and arg.kind not in fiddle.VARIADIC for arg in parameters)


def called(name: str, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """Call user code, whose every failure becomes a ConfigError.

    Raises:
      ConfigError: it failed.
    """
    try:
        return function(*args, **named)
    except (Exception, SystemExit) as error:
        if is_user_error(error):
            raise
        lines = str(error).splitlines() or [""]
        parameter = lines[0].partition("=")[0]  # as of `depth=0 must be 1 or more.`
        if isinstance(error, ValueError) and parameter in inspect.signature(function).parameters:
            raise ConfigError(lines[0]) from error
        raise ConfigError(
            f"{name} failed, so it may not suit this config.\n"
            f"  {type(error).__name__}: {lines[0]:.200}\n"
            "  --debug shows where."
        ) from error


class KnownParts(Mapping[str, Callable[..., Any]]):
    """Components by name; dotted names are looked up when they are asked for.

    A bare name is what one package of fidgpt exports; if two export it, it is written
    `optim.Constant`. Classes of torch.nn and torch.optim are known by their bare names, where
    fidgpt has none of that name, and as `nn.LayerNorm`. Other dotted names are written in full. A
    name that a config file could not contain, such as `torch.load`, is not known. To ask for one
    that cannot be imported is a ConfigError, and so is one of an installed package that neither
    declares itself nor is allowed.

    Args:
      packages: installed projects; what they export, and what their modules `parts` offer, has
        bare names too.
      allowed: more packages whose callables a file may name.
    """

    def __init__(self, packages: tuple[str, ...] = (), allowed: tuple[str, ...] = ()) -> None:
        self._projects = packages
        self._allowed = (*packages, *allowed)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        package, _, last = name.rpartition(".")
        if name in self._listed:
            return self._listed[name]
        if last in self._exports.get(package, {}):
            return self._exports[package][last]
        for module in TORCH_MODULES if not package else (_TORCH_SHORT.get(package, package),):
            if module in TORCH_MODULES:
                value = vars(importlib.import_module(module)).get(last)
                if inspect.isclass(value) and value.__module__.startswith(TORCH_MODULES):
                    return value
        if not package or package in self._exports or package in TORCH_MODULES:
            raise KeyError(name)
        top = package.partition(".")[0]
        if top in _LIMITED:
            try:
                return find_name(f"{package}:{last}")
            except ConfigError:
                raise KeyError(name) from None
        value = find_dotted(name, "component")
        file = getattr(sys.modules[top], "__file__", None)
        if top not in self._allowed and file and not _INSTALLED.isdisjoint(Path(file).parts):
            raise ConfigError(
                f"{name} cannot be used: {top} is installed and does not declare components for "
                f"fidgpt. If it has some, add --allow={top}."
            )
        return value

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and callable(self[name])
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    @cached_property
    def _exports(self) -> dict[str, dict[str, Any]]:
        """The components that each package exports; imports torch when first used."""
        exported = {name: exports(importlib.import_module(f"fidgpt.{name}")) for name in _PACKAGES}
        for name in self._projects:
            top = importlib.import_module(name)
            exported[name] = {key: getattr(top, key) for key in getattr(top, "__all__", ())}
            for module in _module_in(name, "parts"):
                exported[name] |= offers(module)
        return {
            package: {name: value for name, value in named.items() if _is_constructor(value)}
            for package, named in exported.items()
        }

    @cached_property
    def _listed(self) -> dict[str, Callable[..., Any]]:
        """All components, with their package where two packages have the name."""
        count = collections.Counter(name for named in self._exports.values() for name in named)
        return {
            name if count[name] == 1 else f"{package}.{name}": value
            for package, named in self._exports.items()
            for name, value in named.items()
        }


def _is_constructor(value: Any) -> bool:
    if not inspect.isclass(value):
        return inspect.isroutine(value)
    is_other = (
        hints.is_protocol(value) or is_tag(value) or issubclass(value, BaseException | enum.Enum)
    )
    return not is_other


@dataclass(frozen=True)
class Catalogue:
    """Names and what they stand for; other names are the dotted ones of importable modules.

    Attributes:
      configs: functions that return a graph.
      fiddlers: functions that change one.
      tags: quantities.
      parts: constructors, and functions that components take.
      packages: packages whose callables a file may name.
      named: packages in which dotted names were found.
    """

    configs: Mapping[str, Callable[..., fdl.Config]]
    fiddlers: Mapping[str, Callable[..., None]]
    tags: Mapping[str, type[fdl.Tag]]
    parts: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    named: set[str] = field(default_factory=set)

    def find(self, kind: str, name: str) -> Any:
        """Return what a name stands for, as a `config`, `fiddler` or `tag`.

        Raises:
          ConfigError: there is nothing of that name and kind; the nearest names are suggested.
        """
        known: Mapping[str, Any] = getattr(self, f"{kind}s")
        if name in known:
            return known[name]
        if "." in name:
            value = find_dotted(name, kind)
            self.named.add(name.partition(".")[0])
            return value
        other = self.kind_of(name)
        remedy = f"There is {other}:{name}." if other else suggest(name, known)
        raise ConfigError(f"there is no {kind} {name!r:.80}. {remedy}")

    def kind_of(self, name: str) -> str | None:
        """Return the kind under which a name is listed, if it is."""
        kinds = ("config", "fiddler", "tag")
        return next((kind for kind in kinds if name in getattr(self, f"{kind}s")), None)

    @property
    def constraints(self) -> list[Callable[[fdl.Config], None]]:
        """What the modules `constraints` of projects offer: of those installed, allowed, or named.

        Raises:
          ConfigError: one of them cannot be imported.
        """
        projects = sorted({name.partition(".")[0] for name in (*self.packages, *self.named)})
        modules = [module for name in projects for module in _module_in(name, "constraints")]
        values = [value for module in modules for value in offers(module).values()]
        return [value for value in values if inspect.isfunction(value)]


def own_catalogue(allowed: tuple[str, ...] = ()) -> Catalogue:
    """Return the catalogue of fidgpt's own names and the names of installed projects.

    Args:
      allowed: more packages whose callables a file may name.

    Raises:
      ConfigError: one of those is a part of Python, with which a file could run any command; or an
        installed project cannot be imported.
    """
    from fidgpt import configs, fiddlers, tags

    for name in allowed:
        if name.partition(".")[0] in sys.stdlib_module_names:
            raise ConfigError(
                f"--allow={name:.80} would let a file run any command, since it is a module of "
                "Python itself: put what the file needs into a package of your own."
            )
    packages = tuple(_declared_packages())
    dotted = {name: find_dotted(path, "config") for name, path in _DOTTED_CONFIGS.items()}
    changes = {name: find_dotted(path, "fiddler") for name, path in _DOTTED_FIDDLERS.items()}
    own_tags = {name: value for name, value in vars(tags).items() if is_tag(value)}
    return Catalogue(
        configs=_with_projects(offers(configs) | dotted, packages, "config"),
        fiddlers=_with_projects(offers(fiddlers) | changes, packages, "fiddler"),
        tags=_with_projects(own_tags, packages, "tag"),
        parts=KnownParts(packages, allowed),
        packages=(*packages, *allowed),
    )


def project_modules(name: str) -> list[ModuleType]:
    """Return the modules of a name, such as `families`, of all installed projects that have it.

    Raises:
      ConfigError: one of them cannot be imported.
    """
    return [module for package in _declared_packages() for module in _module_in(package, name)]


def _declared_packages() -> list[str]:
    """Return the names of installed packages that declare themselves as projects."""
    folders = [Path(name) for name in sys.path]
    return _declared_in(tuple((path, path.stat().st_mtime_ns) for path in folders if path.exists()))


@functools.lru_cache(maxsize=1)
def _declared_in(changes: tuple[tuple[Path, int], ...]) -> list[str]:
    """The same, read again when a folder of packages has changed, as reading takes a while."""
    del changes
    return sorted({point.value for point in entry_points(group=GROUP)})


def _with_projects(own: dict[str, Any], packages: Iterable[str], kind: str) -> dict[str, Any]:
    """Return own names, the dotted ones of projects, and bare ones that one project alone has."""
    dotted = {
        f"{module.__name__}.{name}": value
        for package in packages
        for module in _module_in(package, f"{kind}s")
        for name, value in _offers_of(module, kind).items()
        if _is_kind(value, kind)
    }
    bare = collections.Counter(name.rpartition(".")[2] for name in dotted)
    short = {last: v for name, v in dotted.items() if bare[last := name.rpartition(".")[2]] == 1}
    return short | own | dotted


def config_named(text: str, catalogue: Catalogue) -> fdl.Config:
    """Return a copy of the graph that a config function returns, since it may keep its own.

    Raises:
      ConfigError: there is no such function, it fails, or returns no graph.
    """
    call = expressions.parse_call(text)
    root = call_with(catalogue.find("config", call.name), call)
    if not isinstance(root, fdl.Config):
        raise ConfigError(
            f"{call.name} returns {type(root).__name__}, but a config must be a fdl.Config."
        )
    return clone(root)


def call_fiddler(text: str, root: fdl.Config, catalogue: Catalogue) -> None:
    """Change a graph by a fiddler that is called in a text, such as `use_gqa(num_kv_heads=2)`.

    Raises:
      ConfigError: there is no such fiddler, it fails, or it returns something.
    """
    call = expressions.parse_call(text)
    require_none(call.name, call_with(catalogue.find("fiddler", call.name), call, root))


def require_none(name: str, returned: Any) -> None:
    """Refuse what a fiddler returns.

    Raises:
      ConfigError: it is not None.
    """
    if returned is not None:
        raise ConfigError(
            f"{name} returns {type(returned).__name__}, but a fiddler must return None: it "
            "changes its graph in place."
        )


def find_dotted(name: str, kind: str) -> Any:
    """Return what a module offers under a dotted name, such as `lab.ablations.narrow`.

    A module offers what it lists in `__all__`, or else its own public definitions, and a package
    offers its modules that it imports; nothing else that it has imported. Python's own modules
    offer nothing.

    Args:
      name: the dotted name.
      kind: of the thing: a `config`, `fiddler`, `tag` or `component`.

    Raises:
      ConfigError: there is no such module, or it offers no such thing.
    """
    module_name, _, last = name.rpartition(".")
    package = module_name.partition(".")[0]
    if package in sys.stdlib_module_names:
        raise ConfigError(
            f"there is no {kind} {name!r}: {package} is one of Python's own modules, which have "
            "none. Rename your module."
        )
    known = _offers_of(imported(module_name, f"{kind} {name!r}"), kind)
    if last not in known:
        raise ConfigError(f"{module_name} offers no {kind} {last!r}. {suggest(last, known)}")
    if not _is_kind(known[last], kind):
        raise ConfigError(f"{name} is not a {kind}, but {type(known[last]).__name__}.")
    return known[last]


def _offers_of(module: ModuleType, kind: str) -> dict[str, Any]:
    """Return what a module offers as a kind; of `auto_config` what makes the graph."""
    known = offers(module)
    if kind == "config":
        known |= {n: _as_config(obj) for n, obj in known.items() if hasattr(obj, "as_buildable")}
    return known


def _as_config(decorated: Any) -> Callable[..., fdl.Config]:
    @functools.wraps(decorated.func)
    def make(*args: Any, **named: Any) -> fdl.Config:
        return decorated.as_buildable(*args, **named)

    return make


def offers(module: ModuleType) -> dict[str, Any]:
    """Return what a module lists in `__all__`, or else its own public definitions.

    Those of a package are also the ones that it imports from its modules.
    """
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    own = re.compile(rf"{re.escape(module.__name__)}({'[.].*' * hasattr(module, '__path__')})?")
    return {
        name: value
        for name, value in vars(module).items()
        if name[0] != "_" and own.fullmatch(str(getattr(value, "__module__", None)))
    }


def graphs_of(module: ModuleType) -> dict[str, tuple[Callable[..., Any], fdl.Config]]:
    """Return the config functions that a module offers, and their graphs, by name.

    They need no arguments and are annotated to return a graph; others are not called.

    Raises:
      ConfigError: one of them failed.
    """
    graphs: dict[str, tuple[Callable[..., Any], fdl.Config]] = {}
    for name, function in offers(module).items():
        if not inspect.isfunction(function) or needs_arguments(function):
            continue
        returned = hints.hints_of(function).get("return", Any)
        kind = typing.get_origin(returned) or returned
        if inspect.isclass(kind) and issubclass(kind, fdl.Buildable):
            root = called(f"{module.__name__}.{name}", function)
            if isinstance(root, fdl.Config):
                graphs[name] = function, root
    return graphs


def module_with_configs(name: str) -> str:
    """Return the module with configs that a name stands for: of a package, its `configs`.

    Raises:
      ConfigError: there is no such module.
    """
    module, inside = imported(name, "its configs"), f"{name}.configs"
    has_configs = hasattr(module, "__path__") and importlib.util.find_spec(inside) is not None
    return inside if has_configs and not graphs_of(module) else name


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "tag":
        return is_tag(value)
    if kind == "component":
        return callable(value) and not is_tag(value)
    return inspect.isfunction(value)


def imported(name: str, wanted: str) -> ModuleType:
    """Import a module of the user's.

    Raises:
      ConfigError: it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is imported
        is_missing = isinstance(error, ModuleNotFoundError)
        remedy = ". Is its folder on PYTHONPATH?" if is_missing else ""
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"{name} cannot be imported for {wanted}: {type(error).__name__}: {first:.200}{remedy}"
        ) from error


def _module_in(package: str, name: str) -> list[ModuleType]:
    """Return a module of a project, such as its `configs`, if it has one.

    Raises:
      ConfigError: it cannot be imported.
    """
    wanted, full = f"the project {package!r}", f"{package}.{name}"
    top = imported(package, wanted)
    has_module = hasattr(top, "__path__") and importlib.util.find_spec(full) is not None
    return [imported(full, wanted)] if has_module else []
