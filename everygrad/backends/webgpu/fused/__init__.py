"""Fused groups as WGSL: within the limits of a device, in place, and several as one kernel."""
