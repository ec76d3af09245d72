"""The command `numerics`: what is set, who set it, what it means, and whether the bytes hold."""
