"""Gathering, scattering, masks, sorting and searching."""
