"""LightConv and DynamicConv (Wu et al. 2019): depthwise convolutions whose kernels are shared by heads."""
