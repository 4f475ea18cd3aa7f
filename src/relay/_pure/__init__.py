"""The pure-Python side: the specification of the core, and the fallback."""
