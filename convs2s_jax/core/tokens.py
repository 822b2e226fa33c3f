"""The four special token ids in fairseq's order, so that dictionaries and checkpoints are compatible."""

BOS = 0  # unused: a target starts with EOS
PAD = 1
EOS = 2
UNK = 3

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
