"""FP8 block-scaled gate_up, clamped SwiGLU, re-quantisation and down projection."""
