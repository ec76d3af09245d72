"""How fast the fused ops are: cases, arms that compute them, clocks, and results that can be compared and drawn."""
