"""ConvS2S (Gehring et al. 2017): stacks of convolutions with gated linear units, and multi-step attention."""
