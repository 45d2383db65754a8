"""Drills: long runs that disturb everygrad from outside, and look at what is left behind."""
