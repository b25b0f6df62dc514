"""Values that are one text: the form is one that people and PostgreSQL read, and exact."""

from __future__ import annotations

import binascii
import ipaddress
import pathlib
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic_core import TzInfo

from onceflow.codec.refusal import Refused, type_name

_DURATION = re.compile(r"P(-?\d+)DT(\d+)(?:\.(\d{6}))?S")


def _write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise Refused("Decimal", f"{value} is not a finite number", "use None where there is no number")
    return str(value)


def _write_duration(value: timedelta) -> str:
    fraction = f".{value.microseconds:06d}" if value.microseconds else ""
    return f"P{value.days}DT{value.seconds}{fraction}S"  # Postgres reads it as an interval


def _read_duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as P1DT3600S")
    return timedelta(int(match[1]), int(match[2]), int(match[3] or 0))


def _write_zone(value: ZoneInfo) -> str:
    if value.key is None:
        raise Refused("ZoneInfo", "this time zone has no name", "use ZoneInfo('Area/City')")
    return value.key


def write_base64(value: bytes | bytearray) -> str:
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def read_base64(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


# type -> (tag, value to text); only the exact type is looked up
TEXT_WRITERS: dict[type, tuple[str, Callable[[Any], str]]] = {
    Decimal: ("$decimal", _write_decimal),
    UUID: ("$uuid", str),
    date: ("$date", date.isoformat),
    timedelta: ("$timedelta", _write_duration),
    ZoneInfo: ("$zoneinfo", _write_zone),
    pathlib.PosixPath: ("$posix_path", str),
    pathlib.WindowsPath: ("$windows_path", str),
    pathlib.PurePosixPath: ("$pure_posix_path", str),
    pathlib.PureWindowsPath: ("$pure_windows_path", str),
    ipaddress.IPv4Address: ("$ip_address", str),
    ipaddress.IPv6Address: ("$ip_address", str),
    ipaddress.IPv4Network: ("$ip_network", str),
    ipaddress.IPv6Network: ("$ip_network", str),
    ipaddress.IPv4Interface: ("$ip_interface", str),
    ipaddress.IPv6Interface: ("$ip_interface", str),
}

TEXT_READERS: dict[str, Callable[[str], Any]] = {
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$decimal": Decimal,
    "$uuid": UUID,
    "$bytes": read_base64,
    "$bytearray": lambda text: bytearray(read_base64(text)),
    "$date": date.fromisoformat,
    "$timedelta": _read_duration,
    "$zoneinfo": ZoneInfo,
    "$posix_path": pathlib.PosixPath,
    "$windows_path": pathlib.WindowsPath,
    "$pure_posix_path": pathlib.PurePosixPath,
    "$pure_windows_path": pathlib.PureWindowsPath,
    "$ip_address": ipaddress.ip_address,
    "$ip_network": ipaddress.ip_network,
    "$ip_interface": ipaddress.ip_interface,
}


def write_moment(tag: str, value: datetime | time) -> dict[str, Any]:
    """A datetime or time: ISO text for people and Postgres, beside it what the text cannot say (zone, fold)."""
    zone = value.tzinfo
    if type(zone) not in (type(None), ZoneInfo, timezone, TzInfo):
        reason = f"its tzinfo is a {type_name(type(zone))}"
        raise Refused(type_name(type(value)), reason, "use zoneinfo.ZoneInfo or datetime.timezone")
    parts: dict[str, Any] = {tag: value.isoformat()}
    if type(zone) is ZoneInfo:
        parts["$zone"] = _write_zone(zone)
    elif type(zone) is timezone:
        if zone.tzname(None) != timezone(zone.utcoffset(None)).tzname(None):
            parts["$zone_name"] = zone.tzname(None)
    elif type(zone) is TzInfo:
        parts["$tzinfo"] = "pydantic"
    if value.fold:
        parts["$fold"] = 1
    return parts


def read_moment(read: Callable[[str], Any], parts: dict[str, Any], tag: str) -> Any:
    """The inverse of write_moment; the wall clock and the zone's name win over the offset written then."""
    value = read(parts[tag])
    zone = value.tzinfo
    if "$zone" in parts:
        zone = ZoneInfo(parts["$zone"])
    elif "$zone_name" in parts:
        zone = timezone(value.utcoffset(), parts["$zone_name"])
    elif "$tzinfo" in parts:
        zone = TzInfo(value.utcoffset().total_seconds())
    return value.replace(tzinfo=zone, fold=parts.get("$fold", 0))


# What a defaultdict may call for a missing key: code that everybody has
FACTORIES: dict[str, type] = {cls.__name__: cls for cls in (int, float, str, bool, list, dict, set, tuple, bytes)}
