"""From text to batches: sources, tokenizers, prepared corpora, and streams of tokens."""

from fidgpt.data.batches import *
from fidgpt.data.chat_templates import *
from fidgpt.data.conversations import *
from fidgpt.data.documents import *
from fidgpt.data.errors import *
from fidgpt.data.growing import *
from fidgpt.data.messages import *
from fidgpt.data.mixture import *
from fidgpt.data.packing import *
from fidgpt.data.preferences import *
from fidgpt.data.prefetch import *
from fidgpt.data.preparation import *
from fidgpt.data.prepared import *
from fidgpt.data.sources import *
from fidgpt.data.streams import *
from fidgpt.data.tokenizers import *
from fidgpt.data.transforms import *
