"""Scaling lab: plan the cost of an update on many devices without them, sweep over meshes, check against real runs."""
