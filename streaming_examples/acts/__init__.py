"""Acts (parts) of the demo, the applications that an act starts and kills, and the report about the results."""
