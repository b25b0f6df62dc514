"""Operators that come along: what most dags need, written as your own would be."""
