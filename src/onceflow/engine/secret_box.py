"""Secrets at rest: encrypted with Fernet by a key that the database never has."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from onceflow.errors import SettingsError

MAKE_A_KEY = 'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'


class SecretBox:
    """Encrypts with the first of the keys in the setting fernet_key, decrypts with any of them: put a new one before the old one to change it."""

    def __init__(self, keys: str | None) -> None:
        self._keys = keys

    def encrypt(self, text: str, what: str) -> str:
        """A token. Raises SettingsError, naming what was to be kept, when there is no key."""
        return str(self._open(f"{what} is secret and is kept encrypted").encrypt(text.encode()).decode())

    def decrypt(self, token: str, what: str) -> str:
        """The text again. Raises SettingsError when there is no key, or none of them fits."""
        fernet = self._open(f"{what} is kept encrypted")
        try:
            return str(fernet.decrypt(token.encode()).decode())
        except import_module("cryptography.fernet").InvalidToken:
            raise SettingsError(f"{what} was encrypted with another key than those in ONCEFLOW_FERNET_KEY; add that key, or set it anew") from None

    def _open(self, why: str) -> Any:
        if self._keys is None:
            raise SettingsError(f"{why}: set ONCEFLOW_FERNET_KEY, here and for the workers. Make a key with: {MAKE_A_KEY}")
        try:
            fernet = import_module("cryptography.fernet")
        except ImportError:
            raise SettingsError(f"{why}, for which a package is missing: pip install 'onceflow[secrets]'") from None
        try:
            return fernet.MultiFernet([fernet.Fernet(key.strip()) for key in self._keys.split(",") if key.strip()])
        except ValueError:
            raise SettingsError(f"ONCEFLOW_FERNET_KEY is no Fernet key (32 bytes in URL-safe base64). Make one with: {MAKE_A_KEY}") from None
