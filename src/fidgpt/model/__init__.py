"""Components of a decoder, as plain torch modules."""

from fidgpt.model.attention import *
from fidgpt.model.blocks import *
from fidgpt.model.context import *
from fidgpt.model.embedding import *
from fidgpt.model.init import *
from fidgpt.model.kernels import *
from fidgpt.model.linear import *
from fidgpt.model.masks import *
from fidgpt.model.materialization import *
from fidgpt.model.mla import *
from fidgpt.model.mlp import *
from fidgpt.model.moe.experts import *
from fidgpt.model.moe.layer import *
from fidgpt.model.norm import *
from fidgpt.model.positions import *
from fidgpt.model.prediction import *
from fidgpt.model.recurrent.convolution import *
from fidgpt.model.recurrent.delta import *
from fidgpt.model.recurrent.kernels import *
from fidgpt.model.recurrent.lightning import *
from fidgpt.model.recurrent.mamba import *
from fidgpt.model.recurrent.recurrence import *
from fidgpt.model.rope_scaling import *
from fidgpt.model.skips import *
from fidgpt.model.transformer import *
from fidgpt.model.wrappers import *
