"""What stands around the service: what it needs in an account is made here, and its queue is filled, checked and mended.

These are tools that a person or a schedule runs once, so they use boto3. Must not know the command line.
"""
