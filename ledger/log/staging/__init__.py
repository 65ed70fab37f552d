"""Staged parts: files with the entries of Spark tasks, which no reader sees before the commit of their batch.

`area` names and deletes the files, `opened_part` verifies a file, and `promotion` makes large files segments of a log.
"""
