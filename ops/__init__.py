"""The fused ops: an eager reference that reads like the specification, and its Triton kernel beside it."""
