"""Tools for people: the recorded graph as text and pictures, a profiler, the typed stubs."""

from everygrad.core.nearest import answering as _answering
from everygrad.tools.graph import (
    Graph as Graph,
    GraphNode as GraphNode,
    graph_dot as graph_dot,
    graph_text as graph_text,
    read_graph as read_graph,
)
from everygrad.tools.profiler import Profile as Profile, profile as profile
from everygrad.tools.svg import graph_svg as graph_svg

__all__ = [
    "Graph",
    "GraphNode",
    "Profile",
    "graph_dot",
    "graph_svg",
    "graph_text",
    "profile",
    "read_graph",
]

__getattr__ = _answering(__name__)
