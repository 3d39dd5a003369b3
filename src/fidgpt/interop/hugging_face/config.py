"""The config of a Hugging Face directory, whose run goes on from its weights."""

from pathlib import Path

import fiddle as fdl

from fidgpt.data import TokenizerFile
from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.families import family_of
from fidgpt.interop.hugging_face.files import CONFIG, has_weights
from fidgpt.interop.hugging_face.load import load_hf
from fidgpt.interop.hugging_face.said import read_said
from fidgpt.interop.hugging_face.settings import config_of, settings_of
from fidgpt.train import Trainer

_TOKENIZER = "tokenizer.json"


def from_hf(directory: str) -> fdl.Config[Trainer]:
    """The model of a Hugging Face directory, with its tokenizer and weights where it has them.

    What config.json says of training, such as dropout, is not taken over. Where there are weights
    and no tokenizer.json, the config can be built, and is to be given a tokenizer before it runs.

    Raises:
      ConfigError: the directory holds no config.json, or not that of a model that we can compute;
        all that is in the way is listed; or it has weights that are no safetensors, or that no
        index names.
    """
    path = Path(directory).expanduser()
    said = read_said(path)
    try:
        family = family_of(said["model_type"])
        cfg = config_of(family, settings_of(family, said))
    except ConfigError as error:
        raise ConfigError(f"{path / CONFIG} cannot be used:\n  {error}") from error
    path = path.resolve()
    is_trained = has_weights(path)
    # Weights know the numbers of one tokenizer: where it is missing, a run has to say so.
    if is_trained or (path / _TOKENIZER).exists():
        cfg.data.corpus.tokenizer = fdl.Config(TokenizerFile, path=str(path / _TOKENIZER))
    if is_trained:
        cfg.weights = fdl.Partial(load_hf, directory=str(path))
    return cfg
