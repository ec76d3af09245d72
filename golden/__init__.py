"""Provider bytes that the references must return, and the reciprocal square roots of the GPU they were captured on."""
