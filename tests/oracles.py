"""Slow, obvious answers: numpy in extended precision, or exact arithmetic."""
