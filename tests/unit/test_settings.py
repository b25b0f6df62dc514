"""Settings: which source wins, what a wrong value says, and that no password is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.errors import SettingsError
from onceflow.settings import Settings, load_settings, mask_dsn

DSN = "postgresql://ann:s3cret@db.example:5432/shop"


@pytest.fixture(autouse=True)
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import os

    for name in [name for name in os.environ if name.startswith("ONCEFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults_stand_when_nothing_is_given() -> None:
    """Without any source, every setting has its documented default."""
    assert load_settings() == Settings()
    assert (Settings().queues, Settings().concurrency, Settings().lease_s) == (("default",), 32, 10.0)
    assert (Settings().max_value_bytes, Settings().embedded_dir, Settings().log_format) == (
        8388608,
        ".onceflow",
        "text",
    )


def test_argument_beats_environment_beats_file(clean_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three sources that name a setting the argument wins, then the environment, then the file."""
    (clean_place / "onceflow.toml").write_text("concurrency = 1\npoll_s = 1\nmax_rescues = 1\n")
    monkeypatch.setenv("ONCEFLOW_CONCURRENCY", "2")
    monkeypatch.setenv("ONCEFLOW_POLL_S", "2.5")
    found = load_settings(concurrency=3)
    assert (found.concurrency, found.poll_s, found.max_rescues) == (3, 2.5, 1)


def test_none_and_empty_count_as_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option the user did not pass (None) and an empty variable leave the weaker source in force."""
    monkeypatch.setenv("ONCEFLOW_DSN", DSN)
    monkeypatch.setenv("ONCEFLOW_STEP_DSN", "")
    assert load_settings(dsn=None).dsn == DSN
    assert load_settings().step_dsn is None


@pytest.mark.parametrize("text", ["queues = ['a', 'b']\n", "[onceflow]\nqueues = ['a', 'b']\n"])
def test_file_may_be_flat_or_have_a_table(clean_place: Path, text: str) -> None:
    """Flat keys and an [onceflow] table mean the same."""
    (clean_place / "onceflow.toml").write_text(text)
    assert load_settings().queues == ("a", "b")


def test_queues_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment lists queues with commas; blanks around them do not count."""
    monkeypatch.setenv("ONCEFLOW_QUEUES", "fast, slow ,")
    assert load_settings().queues == ("fast", "slow")


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("ONCEFLOW_CONCURRENCY", "many", "whole number"),
        ("ONCEFLOW_CONCURRENCY", "0", "from 1"),
        *(
            (name, value, f"a number of seconds from {least} to ")
            for name, least in (("LEASE_S", "0.1"), ("POLL_S", "0.001"), ("SUSPEND_AFTER_S", "0"), ("STEP_IDLE_S", "0.001"), ("DRAIN_S", "0"))
            for value in ("abc", "nan", "inf", "-inf", "-1", "1e12", "1e400", "true")
        ),
        ("LEASE_S", "0", "from 0.1"),
        ("STEP_IDLE_S", "0.0001", "from 0.001"),
        ("STEP_IDLE_S", "2147484", "to 2147483"),
        *(
            (name, value, "whole number")
            for name in ("CONCURRENCY", "MAX_VALUE_BYTES", "MAX_RESCUES", "GROUP_MAX")
            for value in ("abc", "nan", "2.5", "-1", "1e3")
        ),
        ("MAX_RESCUES", str(2**31), "to 2147483647"),
        ("QUEUES", "a\tb", "queue names"),
        ("QUEUES", "x" * 251, "queue names"),
        ("CODE_VERSION", "x" * 251, "1 to 250"),
        ("CODE_VERSION", "a\nb", "1 to 250"),
        ("DAGS", "a\nb", "control characters"),
        ("LOG_LEVEL", "loud", "'debug'"),
        ("STEP_DSN", "nonsense", "postgresql://"),
        ("DIRECT_DSN", "nonsense", "postgresql://"),
        ("ONCEFLOW_QUEUES", ",", "queue names"),
        ("ONCEFLOW_LOG_FORMAT", "xml", "'text' or 'json'"),
        ("ONCEFLOW_DSN", "mysql://h/d", "postgresql://"),
        ("ONCEFLOW_DSN", "host=h dbname=d", "postgresql://"),
    ],
)
def test_wrong_environment_names_setting_source_and_accepted(monkeypatch: pytest.MonkeyPatch, name: str, value: str, accepted: str) -> None:
    """The error names the setting, the variable it came from, the value, and what would be accepted."""
    name = f"ONCEFLOW_{name.removeprefix('ONCEFLOW_')}"
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    for part in (name.removeprefix("ONCEFLOW_").lower(), name, accepted):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("concurency = 3\n", ["'concurency'", "onceflow.toml", "concurrency"]),
        ("concurrency = true\n", ["'concurrency'", "onceflow.toml", "True"]),
        ("concurrency = '3'\n", ["'concurrency'", "onceflow.toml", "whole number"]),
        ("[onceflow]\nlog_format = 'xml'\n", ["'log_format'", "'xml'"]),
        ("[other]\nx = 1\n", ["'other'"]),
        ("poll_s = 1\n[onceflow]\npoll_s = 2\n", ["'poll_s'", "twice"]),
        ("onceflow = 1\n", ["not a table"]),
        ("poll_s = \n", ["not valid TOML", "line 1"]),
    ],
)
def test_wrong_file_names_the_culprit(clean_place: Path, text: str, parts: list[str]) -> None:
    """Unknown keys, wrong types and broken TOML are errors that name the key and the file."""
    (clean_place / "onceflow.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    for part in parts:
        assert part in str(caught.value)


def test_unknown_argument_is_an_error() -> None:
    """A misspelt argument is refused, not ignored."""
    with pytest.raises(SettingsError, match="'dns' \\(argument\\)"):
        load_settings(dns=DSN)


def test_a_hidden_wrong_value_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value in the environment raises even if an argument would win over it."""
    monkeypatch.setenv("ONCEFLOW_CONCURRENCY", "many")
    with pytest.raises(SettingsError):
        load_settings(concurrency=3)


def test_no_password_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither repr nor an error message shows a password; user, host and database stay readable."""
    shown = repr(load_settings(dsn=DSN, step_dsn=DSN, direct_dsn=DSN))
    assert "s3cret" not in shown
    assert shown.count("postgresql://ann:***@db.example:5432/shop") == 3
    monkeypatch.setenv("ONCEFLOW_DSN", "postgresql+asyncpg://ann:s3cret@h/d")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("dsn", "masked"),
    [
        (DSN, "postgresql://ann:***@db.example:5432/shop"),
        ("postgresql://ann:p@ss:w/o?rd@h/d", "postgresql://ann:***@h/d"),
        ("postgresql://:pw@h/d", "postgresql://:***@h/d"),
        (
            "postgresql://h/d?user=ann&password=pw&sslmode=require",
            "postgresql://h/d?user=ann&password=***&sslmode=require",
        ),
        ("postgresql://ann@h:5432/d", "postgresql://ann@h:5432/d"),
        (
            "postgresql://postgres@/onceflow?host=%2Ftmp%2Frun&port=5432",
            "postgresql://postgres@/onceflow?host=%2Ftmp%2Frun&port=5432",
        ),
        ("host=h password='p w\\'x' user=ann", "host=h password=*** user=ann"),
        ("host=h password = pw user=ann", "host=h password = *** user=ann"),
        ("host=h passwort=pw user=ann", "host=h passwort=*** user=ann"),
        ("postgresql://h/d?passwd=pw&sslpassword=pw&user=ann", "postgresql://h/d?passwd=***&sslpassword=***&user=ann"),
    ],
)
def test_mask_dsn_hides_every_form_of_password(dsn: str, masked: str) -> None:
    """Passwords are masked in the user part, in the query and in key=value form; nothing else is touched."""
    assert mask_dsn(dsn) == masked


def test_settings_cannot_be_changed() -> None:
    """Settings are immutable, so no part of a process can change them for another."""
    with pytest.raises(AttributeError):
        Settings().concurrency = 1  # type: ignore[misc]
