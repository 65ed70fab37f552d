"""Acts of the demo, the applications that an act starts and kills, and the report of what they did."""
