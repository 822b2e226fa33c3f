"""Encoders, decoders, classifiers, and the encoder-decoder that joins them."""
