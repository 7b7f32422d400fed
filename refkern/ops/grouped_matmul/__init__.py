"""The grouped matrix product of a mixture of experts."""
