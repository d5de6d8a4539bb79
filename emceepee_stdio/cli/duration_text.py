"""How long something took, as people say it."""

__all__ = ["duration_text"]

_SECOND_MS, _MINUTE_MS, _HOUR_MS = 1_000, 60_000, 3_600_000


def duration_text(ms: float) -> str:
    """Three digits and a unit, as people say it."""
    if ms < _SECOND_MS:
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"  # noqa: PLR2004 - two digits at least
    if ms < _MINUTE_MS:
        return f"{ms / _SECOND_MS:.2f} s" if ms < 10 * _SECOND_MS else f"{ms / _SECOND_MS:.1f} s"
    if ms < _HOUR_MS:
        return f"{ms // _MINUTE_MS:.0f} min {ms % _MINUTE_MS // _SECOND_MS:.0f} s"
    return f"{ms // _HOUR_MS:.0f} h {ms % _HOUR_MS // _MINUTE_MS:.0f} min"
