"""Everything about the config graph: it knows Fiddle, and no model and no trainer."""

from fidgpt.graph.bind import Heard, bind, resolve
from fidgpt.graph.build import build
from fidgpt.graph.check import check, checked
from fidgpt.graph.clone import clone, clone_part
from fidgpt.graph.difference.changes import (
    Change,
    ItemMoved,
    PartAdded,
    PartRemoved,
    PartReplaced,
    SharingChanged,
    Side,
    TagsChanged,
    ValueChanged,
)
from fidgpt.graph.difference.diff import diff
from fidgpt.graph.difference.text import diff_text
from fidgpt.graph.drawing.draw import draw
from fidgpt.graph.drawing.render import Drawing
from fidgpt.graph.errors import ConfigError, ConfigErrors, suggest
from fidgpt.graph.paths import find_place
from fidgpt.graph.select import find, set_tag, tagged
from fidgpt.graph.storage.file import dump, load
from fidgpt.graph.storage.fingerprint import fingerprint
from fidgpt.graph.swap import swapped
from fidgpt.graph.text import outline
from fidgpt.graph.values import read_value
from fidgpt.graph.walk import Node, nodes, parts, title

__all__ = [
    "Change",
    "ConfigError",
    "ConfigErrors",
    "Drawing",
    "Heard",
    "ItemMoved",
    "Node",
    "PartAdded",
    "PartRemoved",
    "PartReplaced",
    "SharingChanged",
    "Side",
    "TagsChanged",
    "ValueChanged",
    "bind",
    "build",
    "check",
    "checked",
    "clone",
    "clone_part",
    "diff",
    "diff_text",
    "draw",
    "dump",
    "find",
    "find_place",
    "fingerprint",
    "load",
    "nodes",
    "outline",
    "parts",
    "read_value",
    "resolve",
    "set_tag",
    "suggest",
    "swapped",
    "tagged",
    "title",
]
