"""Configs of Hydra and OmegaConf as plain data, composed and resolved by these libraries."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fidgpt.graph import ConfigError
from fidgpt.graph.walk import join, step_to


def read_config(text_or_path: str | Path, select: Mapping[str, str | None] | None = None) -> Any:
    """Return the content of a config.

    All references to one mapping or list are one object. Where a file has a defaults list, Hydra
    composes the file with the others that the list names.

    Args:
      text_or_path: a YAML text, or the Path of a file.
      select: the file for each of some groups, as on Hydra's command line: `{"model": "wide"}`;
        None selects none.

    Raises:
      ConfigError: the libraries are missing, or cannot read the config or resolve a value.
    """
    try:
        from hydra.errors import HydraException  # late: an extra
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError
    except ImportError as error:
        raise ConfigError(
            "files of Hydra and torchtune are read by Hydra and OmegaConf. Install them with: "
            'pip install "fidgpt[hydra]"'
        ) from error
    try:
        return _plain(_load(text_or_path, select or {}), "", {})
    except (HydraException, OmegaConfBaseException, YAMLError, OSError) as error:
        name = "the text" if isinstance(text_or_path, str) else text_or_path
        raise ConfigError(f"{name} cannot be read: {error}") from error


def _load(text_or_path: str | Path, select: Mapping[str, str | None]) -> Any:
    """Return a config of OmegaConf, without its section `hydra`."""
    from hydra import compose, initialize_config_dir
    from omegaconf import ListConfig, OmegaConf

    if isinstance(text_or_path, str):
        return OmegaConf.create(text_or_path)
    config: Any = OmegaConf.load(text_or_path)
    has_defaults = "defaults" in config and isinstance(config["defaults"], ListConfig)
    if not has_defaults and not select:
        return config
    overrides = [f"~{group}" if one is None else f"{group}={one}" for group, one in select.items()]
    with initialize_config_dir(str(text_or_path.parent.absolute()), version_base=None):
        return compose(text_or_path.name, overrides)


def _plain(node: Any, path: str, converted: dict[int, Any]) -> Any:
    """Return a value of OmegaConf as plain data, the same object for each reference to it.

    Args:
      node: the value.
      path: the path of the value.
      converted: each mapping and list so far with its plain form, by its id.

    Raises:
      ConfigError: a value cannot be resolved.
    """
    from omegaconf import DictConfig, ListConfig
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(node, DictConfig | ListConfig):
        return node
    if id(node) in converted:
        return converted[id(node)][1]
    is_mapping = isinstance(node, DictConfig)
    plain: Any = {} if is_mapping else [None] * len(node)
    converted[id(node)] = node, plain  # which keeps the node, so that no other one gets its id
    for key in list(node) if is_mapping else range(len(node)):
        place = join(path, step_to(key))
        try:
            plain[key] = _plain(node[key], place, converted)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{place}: {str(error).splitlines()[0]}") from error
    return plain
