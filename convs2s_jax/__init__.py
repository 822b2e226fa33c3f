"""Convolutional sequence to sequence learning (Gehring et al. 2017) as pure JAX functions."""
