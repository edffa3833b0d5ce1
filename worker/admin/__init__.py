"""Administration of a fleet: create what it needs in an AWS account, announce captures, examine and repair lakes.

A person or a schedule runs these tools once, so they use boto3. They do not know the command line.
"""
