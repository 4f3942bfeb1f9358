"""The settings page says what the settings are."""

from pathlib import Path

from online_sao.config import Settings
from online_sao.settings_reference import markdown

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_current():
    assert PAGE.read_text() == markdown(), "run: python -m online_sao.settings_reference > docs/configuration.md"


def test_every_setting_is_on_the_page_and_says_what_it_means():
    rows = {line.split("`")[1]: line for line in markdown().splitlines() if line.startswith("| `")}
    for group in Settings.model_fields.values():
        for name, field in group.annotation.model_fields.items():
            assert field.description, f"{name} has no docstring"
            assert name in rows
