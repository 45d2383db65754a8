"""Files: objects of tensors saved and loaded, checkpoints, and compiled functions as web pages."""

from everygrad.io.checkpoints import Checkpoints as Checkpoints, load_latest as load_latest
from everygrad.io.loading import load as load
from everygrad.io.saving import save as save
from everygrad.io.web import export_web as export_web

__all__ = ["Checkpoints", "export_web", "load", "load_latest", "save"]
