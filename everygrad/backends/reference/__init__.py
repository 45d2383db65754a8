"""Ops computed a second way, by NumPy alone, to judge what a device computed. It knows the records'
bodies and families, and shares no kernel and no generator with any device."""
