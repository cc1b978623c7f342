"""Recipes: a typed schema, presets as data, and the loader that turns a preset or file plus flags into one."""
