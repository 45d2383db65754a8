"""Drills: long runs that disturb everygrad, or wear it out, and look at what is left behind."""
