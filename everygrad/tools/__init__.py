"""Tools for people: the recorded graph as text and pictures, the generator of the typed stubs."""

from everygrad.tools.graph import (
    Graph as Graph,
    GraphNode as GraphNode,
    graph_dot as graph_dot,
    graph_text as graph_text,
    read_graph as read_graph,
)
from everygrad.tools.svg import graph_svg as graph_svg

__all__ = ["Graph", "GraphNode", "graph_dot", "graph_svg", "graph_text", "read_graph"]
