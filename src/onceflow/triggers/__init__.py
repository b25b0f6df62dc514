"""Triggers that come along, for `defer` and for sensors in mode deferrable; your own are written as these are."""
