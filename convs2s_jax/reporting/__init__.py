"""Reports of runs: one page with curves, translations, comparisons and attention. Workdirs are only read."""
