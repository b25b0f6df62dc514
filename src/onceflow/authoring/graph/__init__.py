"""Dags: workflows whose graph is known up front. Their body is traced once; calls of steps give references, not values."""
