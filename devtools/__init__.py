"""Tools for who works on everygrad; no part of the installed package."""
