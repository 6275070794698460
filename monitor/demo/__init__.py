"""The demo: a simulated web shop whose ranking model gets worse, for rankmon to find out."""
