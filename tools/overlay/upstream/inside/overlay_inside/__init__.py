"""Runs test files inside the base's own interpreter and tells what they gave, line by line."""
