"""Object stores behind one interface: S3 and a directory.

`factory` opens a store by its address. `s3_options` makes sessions and clients of boto3.
"""
