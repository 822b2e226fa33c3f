"""Reports of runs: a page with curves, translations, comparisons and attention. Workdirs are not modified."""
