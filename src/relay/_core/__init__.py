"""The native side: the same names as `relay._pure`, compiled."""
