"""Settings of the broker, declared once.

One file for each area declares its settings as fields; `setting` has the form of a declaration. `broker` joins the
areas, reads settings from a file, and prints conf/broker.toml and docs/settings.md.
"""
