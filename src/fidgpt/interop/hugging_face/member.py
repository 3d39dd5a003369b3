"""The model that a family's settings describe, without memory."""

import torch

from fidgpt.configs.hub import Family
from fidgpt.graph import bind, build
from fidgpt.interop.hugging_face.settings import Settings, config_of
from fidgpt.model import LanguageModel


def member_of(family: Family, settings: Settings) -> LanguageModel:
    """The model of some settings, on the meta device.

    Raises:
      ConfigError: the family has no such member.
    """
    model = bind(config_of(family, settings)).model
    with torch.device("meta"):
        return build(model)
