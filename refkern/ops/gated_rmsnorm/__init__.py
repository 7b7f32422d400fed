"""Normalise, scale, then gate: ONNX Runtime's com.microsoft.GatedRMSNorm."""
