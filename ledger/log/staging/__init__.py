"""Staged parts: files with the entries of Spark tasks, which no reader sees before the commit of their batch.

`area` has the files, `opened_part` verifies one of them, `promotion` makes segments of large ones.
"""
