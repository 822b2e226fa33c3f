"""SliceNet (Kaiser, Gomez and Chollet 2018): depthwise separable convolutions."""
