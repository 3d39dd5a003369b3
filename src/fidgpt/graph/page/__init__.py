"""A config graph as one HTML page that needs no network: a tree and a graph to look around in."""

from fidgpt.graph.page.rendering import Size, page

__all__ = ["Size", "page"]
