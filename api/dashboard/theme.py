"""The dashboard's style sheet and script, as files beside this one, and the one colour that other modules need too."""

from pathlib import Path

ACCENT = "#0e7c76"
CSS = Path(__file__).with_name("dashboard.css").read_text()
SCRIPT = Path(__file__).with_name("dashboard.js").read_text()
