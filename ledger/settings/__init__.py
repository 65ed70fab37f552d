"""Settings of the broker, each declared in one place.

`log`, `cursor`, `cache`, `offload`, `bucket` and `service` declare the settings of their area as fields. `setting`
defines what a declaration contains. `broker` joins the areas, reads a settings file, and prints conf/broker.toml and
docs/settings.md.
"""
