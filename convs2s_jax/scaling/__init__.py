"""The scaling lab: what an update costs on many devices, planned without them, swept, and checked beside a run."""
