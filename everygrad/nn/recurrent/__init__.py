"""Recurrent layers: cells for one step, and layers for whole sequences."""
