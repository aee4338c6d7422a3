"""No test at all."""
