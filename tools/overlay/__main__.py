"""Run the tool as ``python -m overlay``."""

from overlay.cli import main

main(prog_name="torch-overlay")
