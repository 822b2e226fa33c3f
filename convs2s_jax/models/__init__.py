"""Floor 2: encoders, decoders and the record that joins them."""
