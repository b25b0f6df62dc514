"""The demo: bank statements become double entries, exactly once, while a worker is killed in the middle."""
