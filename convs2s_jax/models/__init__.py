"""Encoders, decoders, classifiers, and the encoder-decoder that combines them."""
