"""Declared presets: schema, file, orders of addition. Needs Pydantic and tomli only."""
