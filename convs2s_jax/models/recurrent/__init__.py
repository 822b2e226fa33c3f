"""Recurrent encoders and decoders: GRU and LSTM layers with attention (Bahdanau, Luong, GNMT)."""
