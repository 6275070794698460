"""The demo: a simulated web shop whose ranking model degrades, for rankmon to detect."""
