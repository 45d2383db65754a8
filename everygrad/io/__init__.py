"""What leaves Python: compiled functions as pages for a browser."""

from everygrad.io.web import export_web as export_web

__all__ = ["export_web"]
