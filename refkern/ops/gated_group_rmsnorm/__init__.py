"""Mamba-2's gate-then-normalise over groups."""
