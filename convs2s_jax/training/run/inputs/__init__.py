"""From a corpus to batches on the devices: vocabularies, tokenised splits, shapes, segmentations."""
