"""Fiddlers: functions that each change one aspect of a config graph in place."""

from fidgpt.fiddlers.adapters import *
from fidgpt.fiddlers.attention import *
from fidgpt.fiddlers.blocks import *
from fidgpt.fiddlers.checkpoints import *
from fidgpt.fiddlers.conversations import *
from fidgpt.fiddlers.data import *
from fidgpt.fiddlers.embeddings import *
from fidgpt.fiddlers.evaluation import *
from fidgpt.fiddlers.experts import *
from fidgpt.fiddlers.hardware import *
from fidgpt.fiddlers.heads import *
from fidgpt.fiddlers.latent import *
from fidgpt.fiddlers.losses import *
from fidgpt.fiddlers.observers import *
from fidgpt.fiddlers.optimizers import *
from fidgpt.fiddlers.parallel import *
from fidgpt.fiddlers.patterns import *
from fidgpt.fiddlers.positions import *
from fidgpt.fiddlers.preferences import *
from fidgpt.fiddlers.recurrent import *
from fidgpt.fiddlers.runs import *
from fidgpt.fiddlers.scaling import *
from fidgpt.fiddlers.schedules import *
from fidgpt.fiddlers.sizes import *
from fidgpt.fiddlers.speed import *
from fidgpt.fiddlers.steps import *
from fidgpt.fiddlers.streams import *
from fidgpt.fiddlers.trackers import *

__all__ = sorted(name for name, value in globals().items() if callable(value))  # pyright: ignore[reportUnsupportedDunderAll]
