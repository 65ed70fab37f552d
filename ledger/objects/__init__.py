"""Object stores with one interface: an S3 bucket or a directory.

`factory` opens a store by its address. `s3_options` creates sessions and clients of boto3.
"""
